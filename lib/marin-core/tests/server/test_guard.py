"""What the server refuses, over the wire: other names, other methods, and every way out of the prefix."""

import os
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.server.guard import HEADERS, Hosts

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

ROUTES = ("/", "/runs/", "/steps/", "/attempts/1/", "/logs/1/", "/files/", "/download/", "/images/")
OUT = "a/0123456789ab/attempts/1/out"
ESCAPES = (
    "../secret.txt",
    "%2e%2e/secret.txt",
    "..%2fsecret.txt",
    "%2e%2e%2fsecret.txt",
    "%252e%252e%252fsecret.txt",
    "..%5csecret.txt",
    "..\\secret.txt",
    "%c0%ae%c0%ae/secret.txt",
    "..;/secret.txt",
    "./../secret.txt",
    f"{OUT}/../../../../../secret.txt",
    f"{OUT}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret.txt",
    f"{OUT}/..%2f..%2f..%2f..%2f..%2fsecret.txt",
    f"..%2fprefix/{OUT}/notes.txt",
    f"{OUT}/notes.txt%00.png",
    f"%00/{OUT}/notes.txt",
    "{outside}/secret.txt",
    "{quoted}%2fsecret.txt",
    "/{outside}/secret.txt",
    "file:{outside}/secret.txt",
    f"{OUT}/link.txt",
    f"{OUT}/link.png",
    f"{OUT}/away/secret.txt",
    "linked/attempts/1/out/secret.txt",
    "linked/attempts/1/log.txt",
    f"{OUT}/loop",
    f"{OUT}/pipe",
)
UNSHOWN = (
    "runs/r.json",
    "a/0123456789ab/step.json",
    "a/0123456789ab/lease.json",
    "a/0123456789ab/attempts/1/attempt.json",
    "a/0123456789ab/attempts/1/request.pickle",
    ".ssh/id_rsa",
)


@pytest.fixture(scope="module")
def lab(new_lab: Any) -> Any:
    """A prefix out of which every kind of link leads."""
    lab = new_lab()
    step = lab.node("a")
    lab.output(step, "notes.txt", "a remark")
    lab.output(step, "folder.txt/deep.txt", "deep")
    lab.run("r", step)
    outside, out = lab.prefix.parent, lab.prefix / OUT
    (out / "link.txt").symlink_to(outside / "secret.txt")
    (out / "link.png").symlink_to(outside / "secret.txt")
    (out / "away").symlink_to(outside)
    (out / "loop").symlink_to("loop")
    (out / "inside.txt").symlink_to("notes.txt")
    os.mkfifo(out / "pipe")
    (outside / "elsewhere" / "attempts/1/out").mkdir(parents=True)
    (outside / "elsewhere" / "attempts/1/out/secret.txt").write_text("the secret")
    (outside / "elsewhere" / "attempts/1/log.txt").write_text("the secret")
    (outside / "elsewhere" / "step.json").write_text('{"note": "the secret"}')
    (lab.prefix / "linked").symlink_to(outside / "elsewhere")
    (lab.prefix / "runs" / "evil.json").symlink_to(outside / "secret.txt")
    for key in UNSHOWN:
        if not (lab.prefix / key).exists():
            lab.write(key, "the secret")
    return lab


@pytest.fixture(scope="module")
def server(lab: Any, start: Any) -> Any:
    """The server on it."""
    return start(lab.prefix)


def test_no_path_and_no_link_leads_out_of_the_prefix(lab: Any, server: Any) -> None:
    outside = str(lab.prefix.parent)
    told = []
    for route in ROUTES:
        for escape in ESCAPES:
            target = route + escape.format(outside=outside, quoted=quote(outside, safe=""))
            answer = server.get(target)
            if answer.status not in (400, 404) and not (answer.status == 200 and route == "/logs/1/"):
                told.append((target, answer.status))
            if b"the secret" in answer.body or (b"a remark" in answer.body):
                told.append((target, answer.text))
    assert told == []
    assert server.get(f"/download/{OUT}/notes.txt").body == b"a remark"
    assert server.get(f"/download/{OUT}/inside.txt").body == b"a remark"


def test_a_run_record_that_is_a_link_out_is_not_read(server: Any) -> None:
    for target in ("/", "/?q=secret", "/runs/evil", "/runs/evil/state", "/diff?a=evil&b=r", "/steps", "/steps/linked"):
        assert "the secret" not in server.get(target).text
    assert "leads outside the prefix" in server.get("/").text


@settings(max_examples=150)
@given(
    st.sampled_from(ROUTES),
    st.lists(
        st.sampled_from(
            ["..", "%2e%2e", ".%2e", "/", "%2f", "%5c", "a", "0123456789ab", "attempts", "1", "out", "log.txt", "away",
             "secret.txt", "prefix", "elsewhere", "linked", "%00", "runs", "link.txt", "~", "C:", "%ff", "?q=..", "#"]
        ),
        max_size=9,
    ),
    st.booleans(),
)  # fmt: skip
def test_no_composition_of_path_elements_leads_out(server: Any, route: str, elements: list[str], slashed: bool) -> None:
    answer = server.get(route + ("/" if slashed else "").join(elements))
    assert answer.status in (200, 307, 400, 404, 416)
    assert b"the secret" not in answer.body


@pytest.mark.parametrize("key", UNSHOWN)
def test_only_outputs_and_logs_are_handed_out(server: Any, key: str) -> None:
    for route in ("/files/", "/download/", "/images/"):
        answer = server.get(route + key)
        assert answer.status == 404
        assert b"schema" not in answer.body
        assert b"the secret" not in answer.body


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_but_get_and_head_is_answered(server: Any, method: str) -> None:
    for target in ("/", "/steps/a/0123456789ab", "/nowhere"):
        answer = server.get(target, method=method, Origin="http://evil.example", Content_Length="0")
        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "target", ["/", "/steps/a/0123456789ab", f"/download/{OUT}/notes.txt", "/logs/1/a/0123456789ab"]
)
def test_head_has_the_headers_and_no_body(server: Any, target: str) -> None:
    answer = server.get(target, method="HEAD")
    assert answer.status == 200
    assert answer.body == b""
    assert answer.headers["content-type"] == server.get(target).headers["content-type"]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/", 200),
        ("/steps", 200),
        ("/nowhere", 404),
        ("/steps/nowhere", 404),
        ("/files/../x", 400),
        (f"/download/{OUT}/notes.txt", 200),
        (f"/files/{OUT}/notes.txt", 200),
        ("/runs/r/state", 200),
        ("/logs/1/a/0123456789ab", 200),
    ],
)
def test_every_response_forbids_what_it_does_not_need(server: Any, target: str, status: int) -> None:
    answer = server.get(target, Origin="http://evil.example")
    assert answer.status == status
    for name, value in HEADERS.items():
        if name != "Content-Security-Policy":
            assert answer.headers[name.lower()] == value
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.7", ""]
)
def test_a_name_that_is_not_the_servers_is_refused(server: Any, host: str) -> None:
    answer = server.get("/", Host=host)
    assert answer.status == 421
    assert "quickstart" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.8.9.1:1", "[::1]:8080"])
def test_names_of_this_machine_are_answered(server: Any, host: str) -> None:
    assert server.get("/", Host=host).status == 200


@pytest.mark.parametrize(
    ("listens_on", "allowed", "header", "admitted"),
    [
        ("127.0.0.1", (), "lab.example:8642", False),
        ("127.0.0.1", ("Lab.Example",), "lab.example:8642", True),
        ("lab.example", (), "LAB.example.", True),
        ("0.0.0.0", (), "192.168.0.7:8642", True),
        ("0.0.0.0", (), "rebound.example:8642", False),
        ("::", (), "[fe80::1]:8642", True),
        ("::", (), "fe80::1", True),
        ("127.0.0.1", (), "192.168.0.7", False),
        ("127.0.0.1", (), "127.0.0.1:80@evil.example", False),
        ("127.0.0.1", (), "evil.example#127.0.0.1", False),
    ],
)
def test_which_names_are_the_servers(listens_on: str, allowed: tuple[str, ...], header: str, admitted: bool) -> None:
    assert Hosts.of(listens_on, allowed=allowed).admits(header) == admitted


@given(st.text())
def test_any_host_header_gets_an_answer(header: str) -> None:
    assert Hosts.of("127.0.0.1").admits(header) in (True, False)


def test_a_directory_is_not_a_file(server: Any) -> None:
    assert server.get(f"/download/{OUT}/").status == 404
    assert server.get(f"/files/{OUT}/folder.txt").status == 404
    assert server.get(f"/download/{OUT}/folder.txt/deep.txt").body == b"deep"
