"""A few lines of each format, what they are, and what is wrong with others. Written by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

from radixkv.keys import TokenKey
from radixkv.traces import Request
from radixkv.traces.tokenizer import EstimatingTokenizer


class Sample(NamedTuple):
    """Lines of one format and what a reader makes of them."""

    lines: list[str]
    requests: list[Request]
    bad: dict[str, tuple[str, str | None]]
    """By what is wrong: a line, and the field that the error names."""


def of_text(text: str, **fields: Any) -> Request:
    """A request for a text, by the estimating tokenizer."""
    prompt = EstimatingTokenizer().encode(text)
    return Request(prompt=prompt, input_tokens=len(prompt), text=text, **fields)


USER = "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n"

# Of the formats that are JSON: wrong whatever the fields are.
NO_OBJECT: dict[str, tuple[str, str | None]] = {
    "cut off": ('{"hash_ids": [1', None),
    "no JSON": ("what?", None),
    "a list": ("[1, 2]", None),
    "a number": ("17", None),
    "deep": ("[" * 100_000, None),
    "a long number": ('{"tokens": [' + "1" * 5000 + "]}", None),
}


def hashed(**changes: str) -> str:
    """A line of block ids, with some fields' JSON replaced; "" leaves one out."""
    fields = {"chat_id": "1", "timestamp": "2", "input_length": "3", "output_length": "4", "hash_ids": "[5]"} | changes
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items() if value) + "}"


def bad_hashed(changes: dict[str, str]) -> dict[str, tuple[str, str | None]]:
    """What is wrong with lines of block ids; `changes` makes them of a format."""
    wrong = {
        "no length": ("input_length", ""),
        "a length of 0": ("input_length", "0"),
        "a length below 0": ("input_length", "-3"),
        "a float of a length": ("input_length", "3.0"),
        "a string of a length": ("input_length", '"3"'),
        "a bool of a length": ("input_length", "true"),
        "null for a length": ("input_length", "null"),
        "an answer below 0": ("output_length", "-1"),
        "no ids": ("hash_ids", ""),
        "ids in an object": ("hash_ids", '{"5": 1}'),
        "a string of ids": ("hash_ids", '"5"'),
        "too few ids": ("hash_ids", "[]"),
        "too many ids": ("hash_ids", "[5, 6]"),
        "a bool among the ids": ("hash_ids", "[true]"),
        "a float among the ids": ("hash_ids", "[5.0]"),
        "null among the ids": ("hash_ids", "[null]"),
        "a list among the ids": ("hash_ids", "[[5]]"),
        "no time but a string": ("timestamp", '"noon"'),
        "a bool of a time": ("timestamp", "true"),
        "NaN": ("timestamp", "NaN"),
        "no end of time": ("timestamp", "Infinity"),
        "a time beyond floats": ("timestamp", "1" + "0" * 400),
        "a namespace that is no string": ("namespace", "7"),
    }
    return {what: (hashed(**changes | {field: value}), field) for what, (field, value) in wrong.items()}


SAMPLES: dict[str, Sample] = {
    "mooncake": Sample(
        [
            '{"timestamp": 1500, "input_length": 1025, "output_length": 3, "hash_ids": [7, 8, 9]}',
            '{"input_length": 1024, "hash_ids": [7, 8], "extra": {}}',
            '{"timestamp": 0.5, "input_length": 1, "output_length": 0, "hash_ids": [2147483647], "namespace": "a"}',
        ],
        [
            Request(TokenKey([7, 8, 9]), 1025, output_tokens=3, span=512, timestamp=1.5),
            Request(TokenKey([7, 8]), 1024, span=512),
            Request(TokenKey([2147483647]), 1, span=512, timestamp=0.0005, namespace="a"),
        ],
        NO_OBJECT | bad_hashed({"chat_id": ""}),
    ),
    "bailian": Sample(
        [
            (
                '{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 17, "output_length": 132, '
                '"type": "text", "turn": 1, "hash_ids": [1089, 1090]}'
            ),
            '{"chat_id": 160, "timestamp": 62, "input_length": 16, "hash_ids": [1089]}',
        ],
        [
            Request(TokenKey([1089, 1090]), 17, output_tokens=132, span=16, timestamp=61.114),
            Request(TokenKey([1089]), 16, span=16, timestamp=62.0),
        ],
        NO_OBJECT | bad_hashed({}),
    ),
    "tokens": Sample(
        [
            '{"tokens": [1, 2, 4294967295]}',
            '{"tokens": [1], "output": [5, 6], "namespace": "a", "timestamp": 0.25, "text": "one"}',
            '{"tokens": [0], "output_length": 9, "model": "m", "cache_salt": "s"}',
        ],
        [
            Request(TokenKey([1, 2, 4294967295]), 3),
            Request(TokenKey([1]), 1, 2, output=TokenKey([5, 6]), timestamp=0.25, namespace="a", text="one"),
            Request(TokenKey([0]), 1, 9, namespace="model='m' cache_salt='s'"),
        ],
        NO_OBJECT
        | {
            "no tokens": ('{"output": [1]}', "tokens"),
            "an empty prompt": ('{"tokens": []}', "tokens"),
            "null for tokens": ('{"tokens": null}', "tokens"),
            "a token below 0": ('{"tokens": [1, -1]}', "tokens"),
            "a token of 33 bits": ('{"tokens": [4294967296]}', "tokens"),
            "a bool among the tokens": ('{"tokens": [true]}', "tokens"),
            "a float among the tokens": ('{"tokens": [1.0]}', "tokens"),
            "a string among the tokens": ('{"tokens": ["a"]}', "tokens"),
            "an answer that is a string": ('{"tokens": [1], "output": "a"}', "output"),
            "an answer of another length": ('{"tokens": [1], "output": [1], "output_length": 2}', "output_length"),
            "NaN": ('{"tokens": [1], "timestamp": NaN}', "timestamp"),
            "a namespace that is no string": ('{"tokens": [1], "namespace": true}', "namespace"),
            "a text that is no string": ('{"tokens": [1], "text": 1}', "text"),
        },
    ),
    "openai": Sample(
        [
            '{"messages": [{"role": "user", "content": "How are you?"}]}',
            '{"prompt": [1, 2], "model": "m", "timestamp": 5}',
            '{"custom_id": "1", "body": {"prompt": ["a", "b c"]}}',
        ],
        [
            of_text(USER),
            Request(TokenKey([1, 2]), 2, timestamp=5.0, namespace="model='m'"),
            of_text("a"),
            of_text("b c"),
        ],
        NO_OBJECT
        | {
            "nothing": ("{}", "prompt"),
            "no message": ('{"messages": []}', "messages"),
            "messages that are none": ('{"messages": "hi"}', "messages"),
            "a message that is none": ('{"messages": [1]}', "messages[0]"),
            "no role": ('{"messages": [{"content": "a"}]}', "messages[0].role"),
            "a role that is no string": ('{"messages": [{"role": 1}]}', "messages[0].role"),
            "content that is none": ('{"messages": [{"role": "user", "content": 1}]}', "messages[0].content"),
            "a part that is none": ('{"messages": [{"role": "user", "content": [1]}]}', "messages[0].content[0]"),
            "calls that are none": ('{"messages": [{"role": "a", "tool_calls": 1}]}', "messages[0].tool_calls"),
            "a call that is none": ('{"messages": [{"role": "a", "tool_calls": [1]}]}', "messages[0].tool_calls[0]"),
            "tools that are none": ('{"messages": [{"role": "a"}], "tools": {"a": 1}}', "tools"),
            "an empty prompt": ('{"prompt": ""}', "prompt"),
            "an empty list": ('{"prompt": []}', "prompt"),
            "an empty prompt of two": ('{"prompt": ["a", ""]}', "prompt[1]"),
            "a prompt that is none": ('{"prompt": 1}', "prompt"),
            "a prompt of two that is none": ('{"prompt": ["a", 1]}', "prompt[1]"),
            "a bool among the tokens": ('{"prompt": [1, true]}', "prompt"),
            "a model that is no string": ('{"prompt": "a", "model": 1}', "model"),
            "no date": ('{"prompt": "a", "timestamp": "noon"}', "timestamp"),
            "an answer that is none": ('{"prompt": "a", "response": 1}', "response"),
            "choices that are none": ('{"prompt": "a", "response": {"choices": 1}}', "choices"),
            "a choice that is none": ('{"prompt": "a", "choices": [1]}', "choices[0]"),
            "a said thing that is none": ('{"prompt": "a", "choices": [{"message": 1}]}', "choices[0].message"),
            "a length that is none": ('{"prompt": "a", "usage": {"completion_tokens": 1.5}}', "completion_tokens"),
        },
    ),
    "text": Sample(
        ["How are you?", "  [INST] 17 + 4", "null", '"quoted"'],
        [of_text("How are you?"), of_text("  [INST] 17 + 4"), of_text("null"), of_text('"quoted"')],
        {},
    ),
}
