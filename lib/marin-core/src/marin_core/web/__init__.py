"""The page: what a browser is shown of a run.

From the bottom up, one idea a file: `markup` (everything foreign is escaped), `files` (reading that stays inside the
prefix and inside a budget), `values`, `charts`, `layout`, `logs`, `tables`, `folding` (pure functions from data to
markup, coordinates or text), `view` (a run joined with its files), the page's parts made of them (`overview`,
`lineage`, `timings`, `curves`, `sweeps`, `outputs`, `steps`, and `plan` of what has not run), `previews` of single
files, and the `document` around it all. ``page.css`` and ``page.js`` are inlined, so that a page is one file that
needs no network; ``live.js`` and `links` are for pages that `marin_core.server` sends.
"""
