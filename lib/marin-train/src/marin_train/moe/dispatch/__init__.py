"""Dispatch: each expert computes its tokens, and each token's results are added up by their weights.

Bodies of one signature and equal results. ``oracle`` has every expert compute every token, and is the truth for the
others; ``block`` sorts routes by expert into blocks of rows, and computes blocks; ``ragged`` leaves ragged groups to a
kernel. Where experts lie on several devices (the mesh's ``expert`` axis), routes travel: ``all_to_all`` and ``ring`` of
`MoEConfig.exchange` move rows between devices, each of which has such a body compute what arrives.

A body is handed one device's share of tokens and experts, and drops nothing. Where an expert's inner width is spread
over the mesh's ``model`` axis, its results are parts of a sum.
"""

from marin_train.moe.dispatch.sharing import BODIES, Body, Dispatched, dispatch

__all__ = ["BODIES", "Body", "Dispatched", "dispatch"]
