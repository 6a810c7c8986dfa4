"""What `doctor` found, in plain words: the rows of its tables."""

from __future__ import annotations

from typing import Final

from radixkv.lab.causes import CAUSES
from radixkv.lab.doctor import Diagnosis, SplitExample
from radixkv.lab.fixes import Fix

CAUSE_NAMES: Final = {
    "hit": "found cached",
    "evicted": "evicted and read again",
    "partial_block": "in a block not shared whole",
    "last_token": "last token of a prompt seen before",
    "namespace": "cached in another namespace",
    "parted_early": "same text behind another beginning",
    "first_seen": "seen for the first time",
}
"""Every field of `TokenCauses`, in plain words."""


def cause_rows(found: Diagnosis) -> list[tuple[str, str, str, str]]:
    """A row a cause: its name, its tokens, their share of the input, and what it means here."""
    return [
        (
            CAUSE_NAMES[cause],
            f"{tokens:,}",
            f"{found.share(tokens):.1%}",
            _meaning(found, cause) if tokens or cause == "partial_block" else "",
        )
        for cause in CAUSES
        for tokens in (getattr(found.causes, cause),)
    ]


def fix_rows(found: Diagnosis) -> list[tuple[str, str, str, str]]:
    """A row a fix that changes something: what it is, the hit rate with it, its gain in points, the tokens it saves."""
    return [
        (fix.what, f"{fix.hit_rate:.1%}", f"{100 * fix.gain:+.1f}", f"{fix.saved_tokens:,}")
        for fix in best_fixes(found)
        if fix.saved_tokens
    ]


def idle_fixes(found: Diagnosis) -> str:
    """A sentence that names the fixes that change nothing; empty if there are none."""
    idle = [fix.what for fix in best_fixes(found) if not fix.saved_tokens]
    return f"No difference: {'; '.join(idle)}." if idle else ""


def best_fixes(found: Diagnosis) -> list[Fix]:
    """The fixes, most tokens saved first; of the policies, the best alone."""
    policies = [fix for fix in found.fixes if fix.kind == "policy"]
    return [fix for fix in found.fixes if fix not in policies[1:]]


def split_text(found: Diagnosis, example: SplitExample) -> str:
    """What such prompts have in common, in a line."""
    split = example.split
    where = f"at token {split.first:,}" if split.first == split.last else f"at tokens {split.first:,} to {split.last:,}"
    how = "have the same parts in another order" if 2 * split.reordered > split.requests else "differ in a field"
    prompts = "1 prompt parts" if split.requests == 1 else f"{split.requests:,} prompts part"
    return f"{prompts} {where} and {how}: {split.tokens:,} tokens, {found.share(split.tokens):.1%} of the input"


def no_splits(found: Diagnosis) -> str:
    """Why there is nothing to show of prompts that part early."""
    if found.knows_tokens:
        return "None were found."
    return (
        "The trace has ids of blocks and no tokens: whether prompts agree behind the place where they part, "
        "or inside a block, cannot be known."
    )


def _meaning(found: Diagnosis, cause: str) -> str:
    """What a cause says about this trace; empty where its name says it all."""
    if cause == "evicted":
        half, most, all_ = (found.size_text(found.blocks_to_keep(share)) for share in (0.5, 0.9, 1.0))
        return f"half of it kept by {half}; 90 % by {most}; all by {all_}"
    if cause == "partial_block":
        if not found.knows_tokens:
            at_most = found.causes.partial_block + found.unknown_tokens
            return f"ids of blocks hide what is shared inside one: at most {at_most:,}"
        return "what blocks of 1 token would find, with memory for it" if found.causes.partial_block else ""
    return {
        "last_token": "always computed: its logits are the first output",
        "namespace": "what prompts of other namespaces have cached",
        "parted_early": "the prompts part before it: see below",
        "first_seen": "no cache can have it",
    }.get(cause, "")
