"""The report is one page that fetches nothing and believes nothing of what prompts say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from radixkv import TokenKey
from radixkv.lab.doctor import Diagnosis, diagnose
from radixkv.lab.pictures import diagnosis_pictures
from radixkv.lab.report import html_report
from radixkv.lab.style import INK, picture
from radixkv.lab.wording import cause_rows, fix_rows
from radixkv.traces import Request
from radixkv.traces.tokenizer import EstimatingTokenizer

HOSTILE = "</svg></code><script>alert('x')</script><img src=x onerror=alert(1)>--> & \" $x^2$ \ud800"
BODY = " ".join(f"Rule {number} of the house." for number in range(60))


class Tags(HTMLParser):
    """Notes every tag and attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def texts(*given: str, **fields: str) -> list[Request]:
    keys = [EstimatingTokenizer().encode(text) for text in given]
    return [Request(key, len(key), text=text, **fields) for key, text in zip(keys, given, strict=True)]  # type: ignore[arg-type]


def hostile() -> Diagnosis:
    requests = texts(*(f"Now {HOSTILE} {number} {BODY}" for number in range(10)))
    requests += texts(BODY, BODY, namespace=HOSTILE) + texts(BODY, BODY)
    return diagnose(lambda: requests, 50, 16, workers=1)


def test_hostile_text_stays_text() -> None:
    """Prompts, namespaces and the trace's name are shown, and make no element, attribute or script."""
    page = html_report(hostile(), trace=HOSTILE)
    tags = Tags()
    tags.feed(page)

    assert not {"script", "img", "iframe", "object", "link"} & {tag for tag, _ in tags.seen}
    assert not [name for _, attributes in tags.seen for name in attributes if name.startswith("on")]
    assert "&lt;script&gt;" in page
    assert page.encode()  # a lone surrogate would not


def test_the_page_fetches_nothing() -> None:
    """No address but the names of XML's namespaces, and a policy that forbids the rest."""
    tags = Tags()
    tags.feed(html_report(hostile(), trace="trace.jsonl"))

    links = [value for _, attributes in tags.seen for name, value in attributes.items() if name in {"src", "href"}]
    assert [] == links
    assert {"#"} >= {value[0] for _, attributes in tags.seen if (value := attributes.get("xlink:href"))}
    policy = [attributes["content"] for tag, attributes in tags.seen if "http-equiv" in attributes]
    assert ["default-src 'none'; style-src 'unsafe-inline'"] == policy


def test_everything_is_on_the_page() -> None:
    """The tables' words, the verdict and four pictures."""
    found = hostile()
    page = html_report(found, trace="trace.jsonl")

    assert 4 == page.count("<svg")
    for row in cause_rows(found) + fix_rows(found):
        assert f">{row[0]}<" in page
    assert found.verdict in page
    assert INK not in page.partition("</style>")[2]


def test_the_same_bytes_every_time() -> None:
    """Of the page, and so of the pictures in it."""
    assert html_report(hostile(), trace="x") == html_report(hostile(), trace="x")


@pytest.mark.parametrize("requests", [[], [Request(TokenKey([1]), 1)], texts("a b c") * 3])
def test_pictures_of_next_to_nothing(requests: list[Request], tmp_path: Path) -> None:
    """Empty and tiny traces are drawn, too, as well-formed SVG and as PNG."""
    pictures = diagnosis_pictures(diagnose(lambda: requests, 1, 2, workers=1))

    for name, drawn in pictures.items():
        ET.fromstring(drawn.svg)
        drawn.save(tmp_path / f"{name}.svg")
        drawn.save(tmp_path / f"{name}.png")
    assert 2 * len(pictures) == len(list(tmp_path.iterdir()))
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_told_by_its_suffix(tmp_path: Path) -> None:
    """Any other is refused, and nothing is written."""
    with pytest.raises(ValueError, match=r"\.gif"):
        picture(lambda _: None, alt="nothing").save(tmp_path / "x.gif")
    assert [] == list(tmp_path.iterdir())


def test_ids_of_a_picture_are_all_used() -> None:
    """What nothing refers to has no id: pictures share a page."""
    for drawn in diagnosis_pictures(hostile()).values():
        ids = re.findall(r' id="([^"]+)"', drawn.svg)
        assert all(f"#{one}" in drawn.svg for one in ids)
