"""Which of several replicas gets a request."""

from __future__ import annotations

from radixkv.keys import check_size
from radixkv.traces import Request
from radixkv.tree import RadixTree


class PrefixAffinity:
    """Sends a prompt to the replica that got most of it before, if one got at least half; else to the least loaded.

    The rule of cache-aware gateways. It remembers what it sent where, not what is still cached there.

    Args:
        replicas: how many, 1 to 256.

    Raises:
        SizeError: fewer than one.

    >>> from radixkv import TokenKey
    >>> affinity = PrefixAffinity(2)
    >>> prompts = [[1, 2, 3], [7, 8, 9], [1, 2, 4], [7, 8, 8]]
    >>> [affinity.route(Request(TokenKey(prompt), 3)) for prompt in prompts]
    [0, 1, 0, 1]
    """

    def __init__(self, replicas: int) -> None:
        self._loads = [0] * check_size("replicas", replicas, 1)  # tokens sent to each
        self._sent = RadixTree[int](1)

    def route(self, request: Request) -> int:
        """The replica, counted from 0; notes that it gets the request. O(tokens) at `memcmp` speed."""
        tree, data = self._sent, request.prompt.data
        path, matched, inside = tree.walk(data, len(data), request.namespace)
        if matched and 2 * matched >= len(data):
            replica = path[-1].blocks[inside // tree.stride - 1]
        else:
            replica = self._loads.index(min(self._loads))
        self._loads[replica] += request.input_tokens
        if inside:
            path[-1] = tree.split(path[-1], inside)
        if matched < len(data):
            owners = bytearray([replica]) * ((len(data) - matched) // tree.stride)
            tree.attach(path[-1] if path else tree.root, data[matched:], owners, request.namespace)
        return replica
