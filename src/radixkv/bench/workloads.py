"""What prefix caching is for, and what it is not for: workloads of real English text, made from a seed.

The text is Lewis Carroll's "Alice's Adventures in Wonderland" of 1865, in the public domain (the Millennium Fulcrum
Edition, as data compressors ship it for their tests), one paragraph a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from random import Random
from typing import Final, TypeAlias

from radixkv.errors import RadixKVError

Tokens: TypeAlias = tuple[int, ...]


class TextUsedUpError(RadixKVError):
    """A workload wants more text than the book has."""

    def __init__(self, *, wanted: int) -> None:
        super().__init__(f"the book has no {wanted} tokens left for a passage of their own")
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a workload."""

    tokens: Tokens
    """Its prompt; behind the prompt and the output of `after`, if there is one."""
    outputs: int
    """Tokens to sample, whatever they are."""
    after: int | None = None
    """Index of the call that it waits for and continues."""
    seed: int | None = None
    """Of sampling at temperature 1; None for the likeliest tokens."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls that share what such traffic shares. All without an `after` come at once, in this order."""

    name: str
    about: str
    calls: tuple[Call, ...]
    pool_tokens: int = 16_384
    """Room for K and V, of running requests and of the cache together."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a workload is made."""

    requests: int = 1
    """Times as many requests."""
    length: float = 1.0
    """Times as long prompts."""


class Text:
    """The book, cut into passages in an order drawn from the seed; none comes twice.

    >>> text = Text(lambda words: list(words.encode()), seed=1)
    >>> text.passage(40) == text.passage(40)
    False
    """

    def __init__(self, encode: Callable[[str], Sequence[int]], seed: int, length: float = 1.0) -> None:
        self.random = Random(seed)
        self._encode = encode
        self._length = length
        paragraphs = files("radixkv.bench").joinpath("alice.txt").read_text(encoding="utf-8").splitlines()
        self.random.shuffle(paragraphs)
        self._paragraphs: Iterator[str] = iter(paragraphs)
        self._tokens: list[int] = []  # of the paragraph that the last passage ended in

    def passage(self, size: int) -> Tokens:
        """The next text, `size` tokens of it at length 1.

        Raises:
            TextUsedUpError: the book has ended.
        """
        size = max(round(size * self._length), 1)
        while len(self._tokens) < size:
            paragraph = next(self._paragraphs, None)
            if paragraph is None:
                raise TextUsedUpError(wanted=size)
            self._tokens += self._encode(paragraph + "\n")
        passage, self._tokens = self._tokens[:size], self._tokens[size:]
        return tuple(passage)

    def words(self, words: str) -> Tokens:
        """These words, whatever the length."""
        return tuple(self._encode(words))


def few_shot(text: Text, scale: Scale) -> Workload:
    """Examples of a task, then a question; its answer is one label."""
    task = text.words("Who speaks in the passage? Answer with a name.\n")
    examples = task + sum((text.passage(52) + text.words("\nSpeaker: Alice\n") for _ in range(8)), ())
    ask = text.words("\nSpeaker:")
    calls = [Call(examples + text.passage(18) + ask, 1) for _ in range(166 * scale.requests)]
    return Workload("few-shot", f"{len(calls)} questions behind the same 8 examples", tuple(calls))


def multi_turn(text: Text, scale: Scale) -> Workload:
    """Chats behind one system prompt; each turn brings the whole history."""
    chats = 40 * scale.requests
    system = text.words("You tell the story of Alice.\n") + text.passage(320)
    calls: list[Call] = []
    for _ in range(chats):
        for turn in range(4):
            said = text.words("\nUser: ") + text.passage(22) + text.words("\nStory:")
            calls.append(Call(said, 4, len(calls) - 1) if turn else Call(system + said, 4))
    return Workload("multi-turn", f"{chats} chats of 4 turns behind one system prompt", tuple(calls))


def tree_of_thought(text: Text, scale: Scale) -> Workload:
    """A problem: thoughts are sampled, each is judged, two are gone on with, and what comes of them is judged.

    The instructions are about as long as those of SGLang's benchmark of this name, 30 to 55 tokens.
    """
    propose = text.words(
        "\nPropose one next step towards a solution. Say which idea you follow and why it may help, in one short "
        "sentence, and leave the work itself for later.\nNext thought:"
    )
    judge = text.words(
        "\nNow judge this thought. Does it follow from what is given, and does it lead on to a solution? Check it once "
        "more, strictly, before you answer.\nYes or no:"
    )
    calls: list[Call] = []
    problems = 16 * scale.requests
    for _ in range(problems):
        problem = text.passage(200) + propose
        thoughts = list(range(len(calls), len(calls) + 4))
        calls += (Call(problem, 6, seed=text.random.randrange(2**31)) for _ in thoughts)
        calls += (Call(judge, 1, thought) for thought in thoughts)
        for kept in text.random.sample(thoughts, 2):
            further = list(range(len(calls), len(calls) + 4))
            calls += (Call(propose, 6, kept, text.random.randrange(2**31)) for _ in further)
            calls += (Call(judge, 1, thought) for thought in further)
    about = f"{problems} problems: 4 thoughts, then 4 more after each of 2, all judged"
    return Workload("tree-of-thought", about, tuple(calls))


def self_consistency(text: Text, scale: Scale) -> Workload:
    """The same question sampled several times, behind worked examples."""
    questions = 40 * scale.requests
    examples = text.passage(208)
    calls: list[Call] = []
    for _ in range(questions):
        prompt = examples + text.passage(60) + text.words("\nLet us think step by step.")
        calls += (Call(prompt, 6, seed=text.random.randrange(2**31)) for _ in range(6))
    return Workload("self-consistency", f"{questions} questions, 6 samples of each", tuple(calls))


def agent(text: Text, scale: Scale) -> Workload:
    """Agents with the same tools; each step's prompt is the whole history and a new observation."""
    agents = 32 * scale.requests
    tools = text.words("You can search, read and write. Think, then act.\n") + text.passage(244)
    calls: list[Call] = []
    for _ in range(agents):
        calls.append(Call(tools + text.words("\nTask: ") + text.passage(20) + text.words("\nAct:"), 6))
        for _ in range(3):
            observation = text.words("\nObserved: ") + text.passage(40) + text.words("\nAct:")
            calls.append(Call(observation, 6, len(calls) - 1))
    return Workload("agent", f"{agents} agents of 4 steps with growing histories", tuple(calls))


def document_qa(text: Text, scale: Scale) -> Workload:
    """Questions on a few documents, from different users: they come in no order."""
    documents = [text.passage(320) for _ in range(14 * scale.requests)]
    asked = [
        document + text.words("\nQuestion: ") + text.passage(16) + text.words("\nAnswer:")
        for document in documents
        for _ in range(4)
    ]
    text.random.shuffle(asked)
    about = f"{len(documents)} documents, 4 questions on each"
    return Workload("document-qa", about, tuple(Call(prompt, 4) for prompt in asked))


def no_sharing(text: Text, scale: Scale) -> Workload:
    """Nothing in common: all that a cache can do here is cost time."""
    calls = [Call(text.passage(320), 4) for _ in range(24 * scale.requests)]
    return Workload("no-sharing", f"{len(calls)} prompts with nothing in common", tuple(calls))


def shuffled_groups(text: Text, scale: Scale) -> Workload:
    """Groups share a prefix each, all come at once, in no order, and the pool holds a few groups only."""
    groups = [text.passage(112) for _ in range(46 * scale.requests)]
    prompts = [group + text.passage(16) for group in groups for _ in range(4)]
    text.random.shuffle(prompts)
    room = 32 * scale.requests
    calls = tuple(Call(prompt, 1) for prompt in prompts)
    about = f"{len(groups)} groups of 4, and room for {room} prompts"
    return Workload("shuffled-groups", about, calls, pool_tokens=room * len(prompts[0]))


Maker: TypeAlias = Callable[[Text, Scale], Workload]

WORKLOADS: Final[Mapping[str, Maker]] = {
    "few-shot": few_shot,
    "multi-turn": multi_turn,
    "tree-of-thought": tree_of_thought,
    "self-consistency": self_consistency,
    "agent": agent,
    "document-qa": document_qa,
    "no-sharing": no_sharing,
    "shuffled-groups": shuffled_groups,
}
"""Every workload by the name that `--only` takes."""


def make(name: str, encode: Callable[[str], Sequence[int]], scale: Scale, *, seed: int = 1) -> Workload:
    """A workload of `WORKLOADS`; the same for the same seed, scale and tokenizer."""
    return WORKLOADS[name](Text(encode, seed, scale.length), scale)
