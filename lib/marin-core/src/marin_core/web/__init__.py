"""The page: what a browser is shown of a run.

From the bottom up, one idea a file: `markup` (everything foreign is escaped), `files` (reading that stays inside the
prefix and inside a budget), `values`, `charts`, `layout` (pure functions from data to markup or coordinates), `naming`
(what tells steps of one name apart), `view` (a run joined with its files), and the page's parts made of them:
`overview`, `lineage`, `curves`, `outputs`, `steps`. ``page.css`` and ``page.js`` are inlined, so that a page is one
file that needs no network.
"""
