"""Steps that are alike, on a GPU: sent once, then replayed as a CUDA graph."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar

import torch

log = logging.getLogger(__name__)

SWITCH = "EQUIPOISE_CUDA_GRAPHS"
WORTH = 4  # steps: making a graph takes about as long as sending two of them

Kind = TypeVar("Kind", bound=Hashable)
Call = Callable[[], None]


def in_turn(step: Callable[[Any, Kind], None], kinds: Sequence[Kind], device: torch.device, *, replay: bool) -> None:
    """Call ``step(k, kinds[k])`` for every ``k``; on a GPU later steps of a kind replay the second one as a CUDA graph.

    Sending the operations of a small network's step takes longer than a GPU needs to do them. A graph does the same operations
    on the same memory, and so has the same result.

    Parameters
    ----------
    step : is given a number, or on a GPU a tensor [1] that holds it; what it does must follow from its kind alone.
    kinds : of each step. The first of a kind sets libraries up; if then ``WORTH`` are left, a graph is made.
    replay : whether all tensors that ``step`` reads and writes stay where they are. If not, every step is sent.
    """
    recorder = graphs(device) if replay and len(kinds) > WORTH else None
    if recorder is None:
        for k, kind in enumerate(kinds):
            step(k, kind)
        return
    at = torch.zeros(1, dtype=torch.int64, device=device)

    def send(kind: Kind) -> None:
        step(at, kind)
        at.add_(1)

    left, sent, replays = Counter(kinds), set[Kind](), dict[Kind, Call]()
    with recorder.aside():
        for kind in kinds:
            call = replays.get(kind, partial(send, kind))
            if kind in sent and kind not in replays and left[kind] >= WORTH:
                call = replays[kind] = recorder.capture(call)
            call()
            sent.add(kind)
            left[kind] -= 1


def graphs(device: torch.device) -> "_CudaGraphs | None":
    """What makes graphs on a device; None where there are none, or with ``EQUIPOISE_CUDA_GRAPHS=0``."""
    return None if device.type != "cuda" or os.environ.get(SWITCH) == "0" else _graphs(device)


class _CudaGraphs:
    """Makes graphs of what is sent to one GPU; they share their memory, as no two are used at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream, self.pool = device, torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self.last: torch.cuda.CUDAGraph | None = None  # the memory is given up with the last graph
        self.refused: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On a stream of its own: of the usual one no graph can be made."""
        usual = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(usual)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            usual.wait_stream(self.stream)

    def capture(self, call: Call) -> Call:
        """A graph of what ``call`` sends, to be called any number of times; ``call`` itself where none can be made.

        After the first that cannot be made, because it waits for a value, no more are tried.
        """
        if self.refused is not None:
            return call
        graph = torch.cuda.CUDAGraph()
        try:
            # not by torch.cuda.graph, which waits for the GPU and frees its memory
            graph.capture_begin(self.pool, "thread_local")
            try:
                call()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            self.refused = graph  # PyTorch's allocator goes on pointing at it
            graph.reset()
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())  # of older ones, the generator waits for it to end
            log.warning("Every step is sent, as no CUDA graph can be made: %s", str(error).partition("\n")[0])
            return call
        self.last = graph
        return graph.replay


_graphs = cache(_CudaGraphs)
