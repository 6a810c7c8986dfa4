"""What `doctor` found, as one page that needs nothing else to be opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from radixkv.lab.doctor import Diagnosis, SplitExample
from radixkv.lab.pictures import diagnosis_pictures
from radixkv.lab.style import Picture
from radixkv.lab.wording import cause_rows, fix_rows, idle_fixes, no_splits, split_text


def html_report(found: Diagnosis, *, trace: str) -> str:
    """One page with everything, pictures inside: it opens without a network, and in light and dark.

    Args:
        found: what to tell.
        trace: the trace's name, for the heading. This and all that comes from prompts is escaped.
    """
    drawn = {name: _figure(one) for name, one in diagnosis_pictures(found).items()}
    symptoms = [("yes" if one.found else "no", one.name, one.text) for one in found.symptoms]
    parts = [
        f"<h1>Why the hit rate is {found.hit_rate:.1%}</h1>",
        f'<p class="lead">{escape(found.verdict)}</p>',
        _facts(found, trace),
        "<h2>Where the tokens went</h2>",
        _table(("cause", "tokens", "share", "what it means"), cause_rows(found), numbers=(1, 2)),
        drawn["misses"],
        "<h2>What each fix is worth</h2>",
        "<p>Each was priced by running the trace again with it.</p>",
        _table(("fix", "hit rate", "gain, points", "tokens saved"), fix_rows(found), numbers=(1, 2, 3)),
        f"<p>{escape(idle_fixes(found))}</p>",
        "<h2>How much memory is enough</h2>",
        drawn["curve"],
        "<h2>Signs of churn</h2>",
        _table(("found", "sign", "measured"), symptoms),
        drawn["lifetimes"],
        "<h2>Prompts whose bodies agree but which part early</h2>",
        *(_split(found, example) for example in found.splits),
        "" if found.splits else f"<p>{no_splits(found)}</p>",
        "<h2>The hottest prefixes</h2>",
        drawn["prefixes"],
    ]
    page = _PAGE.format(title=escape(f"radixkv doctor: {trace}"), body="\n".join(part for part in parts if part))
    return page.encode(errors="replace").decode()  # a prompt may have half a surrogate pair in it


def _facts(found: Diagnosis, trace: str) -> str:
    curve = found.curve
    facts = (
        ("trace", trace),
        ("requests", f"{curve.requests:,}"),
        ("input tokens", f"{curve.input_tokens:,}"),
        ("distinct blocks", f"{curve.unique_blocks:,} of {found.block_size} tokens"),
        ("cache", found.size_text(found.blocks)),
        ("best policy possible here", f"{found.share(found.optimum_tokens):.1%}"),
        ("with memory for everything", f"{curve.ceiling:.1%}"),
    )
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"<dl>{items}</dl>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        classes = [' class="number"' if place in numbers else "" for place in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(classes, row, strict=True))

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<tr>{cells("th", head)}</tr>\n{body}\n</table></div>'


def _split(found: Diagnosis, example: SplitExample) -> str:
    sides = "".join(
        f"<div><code>…{escape(_visible(example.shared))}<mark>{escape(_visible(side))}</mark>…</code></div>"
        for side in (example.one, example.other)
    )
    return f'<p>{escape(split_text(found, example))}</p>\n<div class="split">{sides}</div>'


def _visible(text: str) -> str:
    """Line ends as marks, so that a split stays on its line."""
    return text.replace("\r", "␍").replace("\n", "⏎")


def _figure(drawn: Picture) -> str:
    return f'<figure role="img" aria-label="{escape(drawn.alt)}">{drawn.inline()}</figure>'


_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #24292f; --muted: #6e7781; --line: #d0d7de; --paper: #ffffff; --tint: #f6f8fa;
  --mark: #ffe3b3; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --muted: #9198a1; --line: #3d444d; --paper: #0d1117; --tint: #161b22; --mark: #6b4200; }}
}}
body {{ margin: 2.5rem auto; max-width: 62rem; padding: 0 1.25rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.9rem; margin: 0 0 .5rem; }}
h2 {{ font-size: 1.2rem; margin: 2.5rem 0 .75rem; }}
.lead {{ font-size: 1.1rem; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem 1.5rem; margin: 1.5rem 0;
  padding: 1rem 1.25rem; background: var(--tint); border-radius: 8px; }}
dt {{ color: var(--muted); font-size: .85rem; }}
dd {{ margin: 0; font-weight: 600; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: .95rem; }}
th {{ text-align: left; color: var(--muted); font-weight: 600; font-size: .85rem; }}
th, td {{ padding: .4rem .75rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
figure {{ margin: 1.25rem 0; overflow-x: auto; }}
figure svg {{ width: 100%; min-width: 34rem; height: auto; }}
.split {{ padding: .75rem 1rem; background: var(--tint); border-radius: 8px; overflow-x: auto; white-space: pre; }}
mark {{ background: var(--mark); color: inherit; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
