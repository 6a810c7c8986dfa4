"""The radix tree by itself, and drawn."""

from collections.abc import Callable
from random import Random

import pytest

from radixkv import (
    BlockCountError,
    InvariantError,
    LockError,
    NamespaceError,
    NodeError,
    RadixCache,
    RadixTree,
    SizeError,
    StaleNodeError,
    TokenError,
    TokenKey,
)
from radixkv.drawing import draw


def tree_of(*prompts: str, block_size: int = 1) -> RadixTree[str]:
    """Every letter a token, and its own value in capitals."""
    tree = RadixTree[str](block_size)
    for prompt in prompts:
        values = [prompt[i : i + block_size].upper() for i in range(0, len(prompt) - block_size + 1, block_size)]
        tree.insert(list(prompt.encode()), values)
    tree.check_invariants()
    return tree


# --- by itself -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "matched"), [("", 0), ("a", 1), ("ab", 2), ("abc", 3), ("abcd", 3), ("abx", 2), ("x", 0), ("abde", 4)]
)
def test_a_match_covers_all_that_is_there(prompt: str, matched: int) -> None:
    """The last token too: what a tree is used for is not its business."""
    tree = tree_of("abc", "abde")

    assert (matched, list(prompt[:matched].upper())) == tree.match(list(prompt.encode()))


def test_a_value_may_be_anything() -> None:
    """Objects come back as they were given, and what is there keeps its value."""
    tree, first, second = RadixTree[object](2), object(), [1]
    tree.insert([1, 2, 3, 4, 5], [first, second])
    tree.insert([1, 2, 3, 4, 5, 6], ["ignored", "ignored", None])
    matched, values = tree.match([1, 2, 3, 4, 5, 6])

    assert (6, int, [first, second, None]) == (matched, type(matched), values)
    assert second is values[1]


def test_an_insert_answers_the_node_of_the_last_block() -> None:
    """New, there already, split off, or the root."""
    tree = RadixTree[str](1)
    node = tree.insert([1, 2, 3], ["a", "b", "c"])

    assert node is tree.insert([1, 2, 3], ["x", "y", "z"])
    upper = tree.insert([1], ["x"])
    assert upper is node.parent
    assert (["a"], ["b", "c"]) == (upper.blocks, node.blocks)
    assert tree.root is tree.insert([], [])
    assert [upper, node] == tree.path(node)


def test_namespaces_are_apart() -> None:
    """Under one root, by the first block."""
    tree = RadixTree[str](1)
    tree.insert([1, 2], ["a", "b"])
    tree.insert([1, 2], ["c", "d"], "t")

    assert ((2, ["a", "b"]), (2, ["c", "d"])) == (tree.match([1, 2]), tree.match([1, 2], "t"))
    assert (0, []) == tree.match([1, 2], "")
    tree.insert([1, 3], ["c", "e"], "t")
    assert (2, ["c", "e"]) == tree.match([1, 3], "t")
    tree.check_invariants()


def test_it_counts_and_lists_its_nodes() -> None:
    """Parents before children; the root is none of them."""
    tree = tree_of("abc", "abd", "x")
    nodes = list(tree)

    assert (4, 4, 5) == (len(tree), tree.num_nodes, tree.num_blocks)
    assert 4 == len(nodes)
    for place, node in enumerate(nodes):
        assert node.parent is tree.root or node.parent in nodes[:place]


def test_bad_input_changes_nothing() -> None:
    """Wrong counts, tokens, namespaces and block sizes."""
    tree = tree_of("abc")
    drawn = str(tree)
    with pytest.raises(BlockCountError) as caught:
        tree.insert([97, 98, 1], ["A"])
    assert (3, 1) == (caught.value.expected, caught.value.given)
    with pytest.raises(TokenError):
        tree.insert([97, -1], ["A", "B"])
    with pytest.raises(NamespaceError):
        tree.insert([97], ["A"], 5)  # type: ignore[arg-type]
    with pytest.raises(NamespaceError):
        tree.match([97], 5)  # type: ignore[arg-type]
    with pytest.raises(SizeError):
        RadixTree[str](0)

    assert drawn == str(tree)
    tree.check_invariants()


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_seeded_prompts_against_a_dict_of_prefixes(block_size: int) -> None:
    """600 inserts and matches: the tree finds what a dict of whole prefixes finds."""
    random, tree, known = Random(block_size), RadixTree[int](block_size), dict[tuple[int, ...], int]()
    for step in range(600):
        tokens = [random.randrange(3) for _ in range(random.randrange(3 * block_size + 4))]
        prefixes = [tuple(tokens[: block_size * (i + 1)]) for i in range(len(tokens) // block_size)]
        there = [known[prefix] for prefix in prefixes if prefix in known]
        assert (len(there) * block_size, there) == tree.match(tokens)
        if step % 2:
            tree.insert(tokens, [step * 10 + i for i in range(len(prefixes))])
            for i, prefix in enumerate(prefixes):
                known.setdefault(prefix, step * 10 + i)
            tree.check_invariants()

    assert len(known) == tree.num_blocks == sum(len(node.blocks) for node in tree)


def test_a_path_hash_names_the_prefix() -> None:
    """The same however the tree is cut, another for another prefix or namespace."""
    whole, cut = RadixTree[int](1), RadixTree[int](1)
    cut.insert([1, 2], [1, 2])
    cut.insert([1], [1])
    a, b = whole.insert([1, 2, 3], [1, 2, 3]), cut.insert([1, 2, 3], [1, 2, 3])
    others = [
        whole.insert([1, 2, 4], [1, 2, 3]),
        whole.insert([1, 2, 3], [1, 2, 3], "t"),
        whole.insert([1, 2, 3], [1, 2, 3], ""),
        whole.insert([1, 2], [1, 2]),
    ]

    assert whole.path_hash(a) == cut.path_hash(b)
    assert 5 == len({whole.path_hash(node) for node in [a, *others]})
    whole.check_invariants()


def test_what_was_pruned_is_stale() -> None:
    """Its parent stays, its handle is refused."""
    tree = tree_of("abc", "abd")
    leaf = next(node for node in tree if node.blocks == ["D"])
    parent = leaf.parent
    assert parent is tree.prune(leaf)
    tree.check_invariants()

    assert (2, ["A", "B"]) == tree.match(list(b"abd"))
    for call in (tree.lock, tree.unlock, tree.path, tree.check_node):
        with pytest.raises(StaleNodeError):
            call(leaf)


def test_locks_count_on_all_above() -> None:
    """And a node of another tree is none of ours."""
    tree, other = tree_of("abc", "abd"), tree_of("abc")
    leaf = next(node for node in tree if node.blocks == ["C"])
    tree.lock(leaf)
    tree.lock(tree.root)
    tree.check_invariants()

    assert 3 == tree.locked_blocks
    with pytest.raises(LockError):
        tree.unlock(next(iter(tree)))
    with pytest.raises(LockError):
        tree.lock(next(iter(other)))
    tree.unlock(leaf)
    tree.unlock(tree.root)
    assert 0 == tree.locked_blocks
    tree.check_invariants()


def test_a_cleared_tree_is_empty() -> None:
    """Its nodes are stale, its root is not."""
    tree = tree_of("abc", "abd")
    node = next(iter(tree))
    tree.clear()
    tree.check_invariants()

    assert (0, 0) == (len(tree), tree.num_blocks)
    assert (0, []) == tree.match(list(b"abc"))
    tree.check_node(tree.root)
    for stem in (tree.root, node):  # neither has a parent to be pruned from
        with pytest.raises((NodeError, StaleNodeError)):
            tree.prune(stem)
    with pytest.raises(StaleNodeError):
        tree.check_node(node)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"tree": None}, "a node names its tree"),
        ({"label": b"wrong bytes "}, "a label is a whole, positive number of blocks"),
        ({"blocks": []}, "a label is a whole, positive number of blocks"),
        ({"label": b"", "blocks": []}, "a label is a whole, positive number of blocks"),
        ({"label": b"edge"}, "a parent finds its child by the first block"),
        ({"edge": b"edge"}, "a parent finds its child by the first block"),
        ({"pins": 1}, "locks are the node's own and its children's"),
        ({"last_use": 99}, "a node is used no later than its parent"),
        ({"path_hash": 5}, "a kept path hash is right"),
    ],
)
def test_invariants_find_a_node_that_was_tampered_with(changes: dict[str, object], fact: str) -> None:
    """And the message says what is wrong, and shows where."""
    tree = tree_of("abc", "abd")
    leaf = next(node for node in tree if node.blocks == ["D"])
    for attribute, value in changes.items():
        setattr(leaf, attribute, value)

    with pytest.raises(InvariantError) as caught:
        tree.check_invariants()
    assert f"{fact}: broken at {leaf!r} under {leaf.parent!r}" == str(caught.value)


def test_invariants_find_a_namespace_below_depth_one() -> None:
    """A prompt's namespace is known where its first block is found, and nowhere else."""
    tree = tree_of("abc", "abd")
    leaf = next(node for node in tree if node.blocks == ["D"])
    parent = leaf.parent
    assert parent is not None
    del parent.children[leaf.edge]
    leaf.edge = ("t", leaf.label)
    parent.children[leaf.edge] = leaf

    with pytest.raises(InvariantError, match=r"^only depth one knows namespaces: broken at "):
        tree.check_invariants()


@pytest.mark.parametrize(
    ("attribute", "kept"), [("num_nodes", (4, 4, 3)), ("num_blocks", (3, 5, 3)), ("locked_blocks", (3, 4, 4))]
)
def test_invariants_find_a_wrong_counter(attribute: str, kept: tuple[int, int, int]) -> None:
    """Each is recounted: 3 nodes, 4 blocks, 3 of them locked."""
    tree = tree_of("abc", "abd")
    tree.lock(next(node for node in tree if node.blocks == ["D"]))
    tree.check_invariants()
    setattr(tree, attribute, getattr(tree, attribute) + 1)

    with pytest.raises(InvariantError) as caught:
        tree.check_invariants()
    assert f"nodes, blocks and locked blocks are (3, 4, 3), kept as {kept}" == str(caught.value)


def test_a_look_at_the_invariants_changes_nothing() -> None:
    """A path hash that was worked out stays with its node, and none is worked out for the others."""
    tree = tree_of("abc", "abd")
    head, *leaves = tree
    kept = tree.path_hash(leaves[0])
    before = [node.path_hash for node in tree]
    tree.check_invariants()

    assert before == [node.path_hash for node in tree]
    assert (kept, None) == (leaves[0].path_hash, leaves[1].path_hash)
    assert head.path_hash is not None


def test_the_text_of_a_node_shows_its_state() -> None:
    """Its tokens, blocks and locks, and whether it is gone."""
    tree = RadixTree[str](2)
    node = tree.insert([1, 2, 3, 4], ["a", "b"])
    tree.lock(node)
    assert "<Node: 4 tokens, 2 blocks, 1 locks>" == repr(node)
    tree.unlock(node)
    tree.prune(node)

    assert "<pruned Node: 4 tokens, 2 blocks, 0 locks>" == repr(node)
    assert "<Node: 0 tokens, 0 blocks, 0 locks>" == repr(tree.root)


# --- drawn -----------------------------------------------------------------------------------------------------------


def test_an_empty_tree_is_one_line() -> None:
    """It says that there is nothing."""
    assert "0 nodes, 0 blocks of 2 tokens" == str(RadixTree[int](2))


def test_a_drawing_shows_labels_blocks_and_forks() -> None:
    """A fork indents its branches; the tail of a prompt is not there."""
    tree = RadixTree[str](2)
    tree.insert([1, 2, 3, 4, 5], ["a", "b"])
    tree.insert([1, 2, 7, 8], ["x", "c"])

    assert [
        "3 nodes, 3 blocks of 2 tokens",
        "└─ [1 2] a",
        "   ├─ [3 4] b",
        "   └─ [7 8] c",
    ] == str(tree).splitlines()


def test_a_drawing_shows_locks_age_and_namespace() -> None:
    """Locks where there are any, age in uses since the newest."""
    cache = RadixCache(1)
    old = cache.insert([1, 2], [10, 11]).node
    cache.insert([5], [20], "tenant")
    cache.match_prefix([9, 9])
    cache.insert([6], [30])
    cache.lock(old)
    drawn = str(cache.tree)

    assert "2 locked" in drawn.splitlines()[0]
    assert "[1 2] 10 11, 1 lock, age 3" in drawn
    assert "'tenant' [5] 20, age 2" in drawn
    assert "[6] 30, age 0" in drawn


def test_a_chain_of_only_children_is_one_line() -> None:
    """However long it is: the first few nodes, and how many more."""
    cache = RadixCache(1)
    for length in range(1, 4):
        cache.insert(range(length), range(length))
    assert 2 == len(str(cache.tree).splitlines())
    assert "[0] 0, age 0 → [1] 1, age 0 → [2] 2, age 0" in str(cache.tree)

    for length in range(4, 600):
        cache.insert(range(length), range(length))
    drawn = str(cache.tree).splitlines()
    assert 2 == len(drawn)
    assert "more" in drawn[1]
    assert len(drawn[1]) < 200


def test_long_labels_are_shortened() -> None:
    """Their beginning, their end, and how many there are."""
    tree = RadixTree[int](1)
    tree.insert(range(5000), range(5000))
    (line,) = str(tree).splitlines()[1:]

    assert "0 1 2" in line
    assert "4999 (5,000)" in line
    assert len(line) < 120


def test_a_big_tree_stays_short() -> None:
    """20,000 nodes in a few dozen lines; what is left out is counted."""
    random, cache = Random(5), RadixCache(1)
    for _ in range(6000):
        tokens = [random.randrange(9) for _ in range(8)]
        cache.insert(tokens, range(8))
    assert len(cache.tree) > 5000
    lines = str(cache.tree).splitlines()

    assert len(lines) < 100
    assert max(map(len, lines)) < 200
    assert "more" in str(cache.tree)


def test_width_and_depth_limit_a_drawing() -> None:
    """Of 1,206 branches the newest two are drawn, and "… 1,204 more"."""
    tree = RadixTree[int](1)
    for last in range(1206):
        tree.insert([7, 8, last], [0, 1, last])
    drawn = draw(tree, max_width=2).splitlines()

    assert 5 == len(drawn)
    assert "   └─ … 1,204 more" == drawn[-1]
    assert ["└─ [7 8] 0 1", "   └─ … 1,206 more"] == draw(tree, max_depth=1).splitlines()[1:]


# --- changes of the structure that would break it --------------------------------------------------------------------


def test_what_would_break_the_tree_is_refused() -> None:
    """A pruned inner or locked node, a split between blocks, a second child with the same first block: all refused."""
    tree: RadixTree[str] = RadixTree(2)
    inner = tree.insert([1, 2], ["a"])
    leaf = tree.insert([1, 2, 3, 4, 5, 6], ["a", "b", "c"])
    other = RadixTree[str](2).insert([1, 2], ["x"])
    tree.lock(leaf)
    label = TokenKey([3, 4]).data
    before = str(tree)
    broken: list[Callable[[], object]] = [
        lambda: tree.prune(inner),
        lambda: tree.prune(leaf),
        lambda: tree.prune(tree.root),
        lambda: tree.split(leaf, 0),
        lambda: tree.split(leaf, tree.stride + 1),
        lambda: tree.split(leaf, 2 * tree.stride),
        lambda: tree.attach(inner, label, ["d"], None),
    ]
    for call in broken:
        with pytest.raises(NodeError):
            call()
    wrong: list[tuple[bytes, list[str], int]] = [
        (label, [], 1),
        (label, ["d", "e"], 1),
        (2 * label, ["d"], 2),
        (b"", [], 1),
        (label[:-1], ["d"], 1),
    ]
    for run, blocks, expected in wrong:
        with pytest.raises(BlockCountError, match=rf"^expected {expected} blocks, .* got {len(blocks)}$"):
            tree.attach(leaf, run, blocks, None)
    foreign: list[Callable[[], object]] = [
        lambda: tree.prune(other),
        lambda: tree.split(other, 1),
        lambda: tree.attach(other, label, ["d"], None),
    ]
    for call in foreign:
        with pytest.raises(LockError):
            call()

    assert before == str(tree)
    tree.check_invariants()


def test_a_pruned_node_has_no_path_hash() -> None:
    """Unless it was worked out before: there is no path to read any more."""
    tree: RadixTree[str] = RadixTree(1)
    leaf = tree.insert([1], ["a"])
    tree.prune(leaf)

    with pytest.raises(InvariantError):
        tree.path_hash(leaf)
