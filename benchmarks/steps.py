"""What a step of the engine costs, by the tokens that it computes and by what they attend to.

python -m benchmarks.steps [--dtype float32] [--threads N]     in the environment that `make test` sets up
"""

import argparse
import statistics
import time
from array import array
from collections.abc import Sequence

from benchmarks.measure import table
from radixkv.cli.runtime import set_up_process

BLOCK_SIZE = 16
BEHIND = 512
REPEATS = 9


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, help="of torch; all processors by default")
    args = parser.parse_args()
    set_up_process()  # as `radixkv serve`, unless the environment says otherwise

    import torch

    from radixkv.engine import load_model
    from radixkv.engine.grouping import Row
    from radixkv.engine.kv_store import KVStore
    from radixkv.engine.runner import ModelRunner
    from radixkv.engine.threads import apart

    if args.threads:
        torch.set_num_threads(args.threads)
    model = load_model(dtype=args.dtype)

    def rows(count: int, tokens: int, behind: int, *, shared: bool) -> list[Row]:
        """Requests behind the same `behind` tokens or each behind its own; none has its blocks in one piece."""
        pages = -(-(behind + tokens) // BLOCK_SIZE)
        common = behind // BLOCK_SIZE if shared else 0
        made = []
        for number in range(count):
            own = range(common + number, common + number + (pages - common) * count, count)
            blocks = array("I", [*reversed(range(common)), *own])
            made.append(Row([7] * tokens, behind, blocks, wants_logits=True))
        return made

    steps: Sequence[tuple[str, list[Row]]] = [
        *(
            (
                f"{tokens} token{'s' * (tokens > 1)}" + f" behind {behind:,}" * bool(behind),
                rows(1, tokens, behind, shared=False),
            )
            for behind in (0, BEHIND)
            for tokens in (1, 8, 32, 128, 512)
        ),
        ("4 requests, 512 each", rows(4, 512, 0, shared=False)),
        *(
            (f"{count} requests, {tokens} each, behind {whose} {BEHIND:,}", rows(count, tokens, BEHIND, shared=shared))
            for count, tokens in ((32, 1), (16, 32))
            for shared, whose in ((False, "their own"), (True, "the same"))
        ),
    ]
    blocks = max(max(row.blocks) for _, some in steps for row in some) + 1

    def measure() -> list[list[str]]:
        runner = ModelRunner(model.model, KVStore(model.layers, blocks, BLOCK_SIZE, model.dtype, model.device))
        cells = []
        for name, some in steps:
            times = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                runner.forward(some)
                times.append(time.perf_counter() - began)
            milliseconds = statistics.median(times) * 1000
            tokens = sum(len(row.tokens) for row in some)
            cells.append([name, f"{milliseconds:.0f}", f"{milliseconds / tokens:.2f}"])
        return cells

    title = f"{model.name} in {str(model.dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads"
    print(table(title, ["a step of", "ms", "ms a token"], apart(measure)))


if __name__ == "__main__":
    main()
