// What a served page does besides: a run that goes on is read anew when its record has changed, and the log of an
// attempt that goes on follows it.
"use strict";

// A running run. The new page is fetched whole and takes the old one's place; steps that were open stay open.
async function keepUp(live) {
  const asked = performance.now();
  let version = live.dataset.version;
  try {
    const answer = await fetch(live.dataset.state);
    if (answer.ok) version = await answer.text();
    if (version !== live.dataset.version) {
      await refresh();
      live = document.querySelector(".live");
    }
  } catch {
    // The server is away; it may come back.
  }
  if (live) setTimeout(() => keepUp(live), Math.max(1000, 5 * (performance.now() - asked)));
}

async function refresh() {
  const answer = await fetch(location.href);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const open = Array.from(document.querySelectorAll(".steps details[open]"), (each) => each.id);
  const [text, outcome] = [".filter input", ".filter select"].map((name) => document.querySelector(name)?.value);
  document.title = fresh.title;
  for (const name of [".live", "header", "nav", "main"]) {
    const [old, now] = [document.querySelector(name), fresh.querySelector(name)];
    if (old && now) old.replaceWith(document.adoptNode(now));
    else old?.remove();
  }
  enliven();
  if (open.length) await expandAll({ leisurely: false });
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (text || outcome) {
    const form = document.querySelector(".filter");
    form.querySelector("input").value = text;
    form.querySelector("select").value = outcome;
    form.dispatchEvent(new Event("input"));
  }
}

// A running attempt's log. The page is read anew when the attempt has ended.
const most = 2_000_000;

function follow(log) {
  const whole = log.appendChild(document.createTextNode(""));
  const partial = log.appendChild(document.createElement("span"));
  const events = new EventSource(log.dataset.events);
  function add(change) {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    change();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
  events.addEventListener("lines", (event) => {
    add(() => {
      whole.appendData(JSON.parse(event.data));
      if (whole.length > most) whole.deleteData(0, whole.length - most / 2);
      partial.textContent = "";
    });
  });
  events.addEventListener("partial", (event) => add(() => (partial.textContent = JSON.parse(event.data))));
  events.addEventListener("end", () => {
    events.close();
    log.dataset.ended = "yes";
    refresh();
  });
}

document.querySelectorAll(".log").forEach((log) => (log.scrollTop = log.scrollHeight));
document.querySelectorAll(".follow").forEach(follow);
document.querySelectorAll(".live").forEach(keepUp);
