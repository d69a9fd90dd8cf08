"""The application: which address leads to which page.

Every page is a function of the catalogue and the request's parameters; here they meet HTTP. What is missing is 404,
what cannot be read is said on a page, and a record so odd that a page of it fails costs that page alone.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marin_core.errors import CorruptRecordError, NewerRecordError
from marin_core.report import render_run
from marin_core.server import comparison, downloads, entries, following, listings
from marin_core.server.catalogue import Catalogue
from marin_core.server.frames import remark, site_bar
from marin_core.server.guard import Guard, Hosts
from marin_core.web.document import policy
from marin_core.web.files import UnreadableFileError
from marin_core.web.links import state_url
from marin_core.web.markup import Markup, element, fragment
from marin_core.web.steps import render_detail

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pages:
    """The routes' endpoints. All but the log run in threads, since they read files."""

    catalogue: Catalogue
    stopping: Callable[[], bool]

    def runs(self, request: "Request") -> "Response":
        """All runs."""
        query = request.query_params.get("q", "")
        return self._page(lambda: listings.runs_page(self.catalogue, query=query, number=_number(request)))

    def steps(self, request: "Request") -> "Response":
        """All steps."""
        query, wanted = (request.query_params.get(name, "") for name in ("q", "state"))
        return self._page(
            lambda: listings.steps_page(self.catalogue, query=query, wanted=wanted, number=_number(request))
        )

    def run(self, request: "Request") -> "Response":
        """One run, as its report shows it."""
        return self._page(lambda: self._run(request.path_params["run_id"]))

    def _run(self, run_id: str) -> Markup:
        version = self.catalogue.run_version(run_id) or ""
        view = self.catalogue.view(run_id)
        bar = site_bar(self.catalogue.url)
        if view.record.status == "running":
            bar = fragment(bar, element("div", class_="live", data_state=state_url(run_id), data_version=version))
        return render_run(view, above=bar)

    def fold(self, request: "Request") -> "Response":
        """What one step of a large run opens to."""
        index = request.path_params["index"]

        def render() -> Markup:
            view = self.catalogue.view(request.path_params["run_id"])
            if index >= len(view.record.nodes):
                raise UnreadableFileError("there is no such step in this run")
            return render_detail(view.inspecting(index), index)

        return self._page(render)

    def state(self, request: "Request") -> "Response":
        """The version of a run's record, by which its page knows when to read it anew."""
        from starlette.responses import PlainTextResponse

        version = self.catalogue.run_version(request.path_params["run_id"])
        return PlainTextResponse(version or "", status_code=200 if version else 404)

    def step(self, request: "Request") -> "Response":
        """One step."""
        return self._page(lambda: entries.step_page(self.catalogue, request.path_params["address"]))

    def attempt(self, request: "Request") -> "Response":
        """One attempt."""
        wanted = request.path_params
        return self._page(lambda: entries.attempt_page(self.catalogue, wanted["address"], wanted["number"]))

    def file(self, request: "Request") -> "Response":
        """One file, previewed."""
        return self._page(lambda: entries.file_page(self.catalogue, request.path_params["path"]))

    def diff(self, request: "Request") -> "Response":
        """Two runs, compared."""
        a, b = (request.query_params.get(name, "") for name in "ab")
        return self._page(lambda: comparison.diff_page(self.catalogue, a=a, b=b))

    def download(self, request: "Request") -> "Response":
        """One file, to save."""
        return self._bytes(
            lambda: downloads.download(
                self.catalogue, request.path_params["path"], range_header=request.headers.get("range")
            )
        )

    def image(self, request: "Request") -> "Response":
        """One picture."""
        return self._bytes(lambda: downloads.image(self.catalogue, request.path_params["path"]))

    async def log(self, request: "Request") -> "Response":
        """One growing log."""
        from starlette.responses import Response, StreamingResponse

        wanted = request.path_params
        since = request.headers.get("last-event-id") or request.query_params.get("offset", "0")
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        events = following.follow(
            self.catalogue,
            wanted["address"],
            wanted["number"],
            offset=int(since) if _is_offset(since) else 0,
            stopping=self.stopping,
        )
        return StreamingResponse(events, media_type="text/event-stream")

    def missing(self, request: "Request", _error: Exception) -> "Response":
        """An address that leads to no page."""

        def render() -> Markup:
            raise UnreadableFileError(f"there is no page {request.url.path}")

        return self._page(render)

    def _page(self, render: Callable[[], Markup]) -> "Response":
        """A page with its policy; or, in its place, one that says why there is none."""
        from starlette.responses import HTMLResponse

        status = 200
        try:
            text = render()
        except UnreadableFileError as e:
            status, text = 404, remark("Not here", str(e), prefix=self.catalogue.url)
        except (CorruptRecordError, NewerRecordError) as e:
            text = remark(
                "Corrupt record" if isinstance(e, CorruptRecordError) else "Newer record",
                str(e),
                prefix=self.catalogue.url,
            )
        except Exception:
            _logger.exception("a page could not be drawn")
            status = 500
            text = remark(
                "Not drawn",
                "A record here is not what this version reads; the server's log says more.",
                prefix=self.catalogue.url,
            )
        headers = {"Content-Security-Policy": policy(served=True)}
        return HTMLResponse(text.encode("utf-8", errors="replace"), status_code=status, headers=headers)

    def _bytes(self, find: Callable[[], "Response"]) -> "Response":
        from starlette.responses import PlainTextResponse

        try:
            return find()
        except UnreadableFileError as e:
            return PlainTextResponse(f"{e}\n".encode("utf-8", "replace"), status_code=404)


def make_application(prefix: str, *, hosts: Hosts | None = None, stopping: Callable[[], bool] = lambda: False) -> Guard:
    """The server's ASGI application.

    Args:
        prefix: what it shows, a directory or URL.
        hosts: the names that it answers to; default loopback's.
        stopping: asked by streams that would otherwise not end.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    pages = Pages(Catalogue(prefix), stopping)
    routes = [
        Route("/", pages.runs),
        Route("/runs/{run_id}", pages.run),
        Route("/runs/{run_id}/state", pages.state),
        Route("/runs/{run_id}/steps/{index:int}", pages.fold),
        Route("/steps", pages.steps),
        Route("/steps/{address:path}", pages.step),
        Route("/attempts/{number:int}/{address:path}", pages.attempt),
        Route("/logs/{number:int}/{address:path}", pages.log),
        Route("/files/{path:path}", pages.file),
        Route("/download/{path:path}", pages.download),
        Route("/images/{path:path}", pages.image),
        Route("/diff", pages.diff),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={404: pages.missing}), hosts or Hosts())


def _number(request: "Request") -> int:
    text = request.query_params.get("page", "1")
    return max(1, int(text)) if _is_offset(text) else 1


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 16
