"""The arithmetic and the order of a timing; what needs a GPU is in tests/gpu."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types

import pytest

from cookbook.measure import bench, contest, peers, records
from cookbook.products import gemm, linked
from cookbook.products import reducing as reducing_product
from cookbook.recipe import catalog

REDUCES = "hopper/amax_epilogue_gemm"


def test_figures_are_median_and_spread():
    figures = contest.Timing((1.0, 5.0, 2.0, 1.5, 1.2, 1.1, 9.0)).figures(2 * 4096**3)
    assert (figures["median_ms"], figures["min_ms"], figures["max_ms"]) == (1.5, 1.0, 9.0)
    assert figures["tflops"] == pytest.approx(2 * 4096**3 / 1.5e-3 / 1e12, abs=0.01)


def test_the_rate_of_a_copy_is_in_bytes():
    figures = contest.Timing((0.5, 0.4, 0.6)).figures(2 * 4 * 16384**2, "gbps")
    assert figures["gbps"] == pytest.approx(2 * 4 * 16384**2 / 0.5e-3 / 1e9, abs=0.01) and "tflops" not in figures


def test_over_the_rounds_every_variant_follows_every_other():
    names = ["ours", "torch.matmul", "quack"]
    orders = [contest.shuffled(names, n) for n in range(contest.ROUNDS)]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert {order[0] for order in orders} == set(names)
    pairs = {pair for order in orders for pair in itertools.pairwise(order)}
    assert pairs == {(x, y) for x in names for y in names if x != y}


def test_a_loop_goes_round_the_sets():
    seen = []
    contest.loop([lambda i=i: seen.append(i) for i in range(3)], 7)()
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_every_batch_takes_the_gpu_as_long(monkeypatch):
    now = [0.0]

    def call(ms):
        now[0] += ms

    def elapsed(batch):
        before = now[0]
        batch()
        return now[0] - before

    monkeypatch.setattr(contest, "elapsed_ms", elapsed)
    variants = {"ours": lambda *_: call(2.0), "torch.matmul": lambda *_: call(12.5), "tiny": lambda *_: call(0.004)}
    held = contest.Contest(variants, [(), ()], "torch.matmul", 1e9, graphs=False)
    batches, counts, launches = contest.make_batches(variants, held.sets, graphs=False)
    assert counts == {"ours": 50, "torch.matmul": 8, "tiny": 25_000}
    assert launches == "stream" and [round(elapsed(batch), 6) for batch in batches.values()] == [100.0] * 3
    timed = contest.time_contest(held, 7)
    assert [timed[name]["median_ms"] for name in variants] == [2.0, 12.5, 0.004] and timed["batch"] == 50


@pytest.mark.parametrize("sets", [1, 7, 64])
@pytest.mark.parametrize(("host_ms", "gpu_ms"), [(0.03, 0.03), (0.03, 0.004), (2.0, 2.0), (60.0, 60.0)])
def test_graph_is_replayed_until_the_gpu_has_worked_for_a_batch(monkeypatch, sets, host_ms, gpu_ms):
    """However long the host takes to issue what the graph launches by itself."""
    import torch

    class Graph:
        """Counts what is called while it captures, and again at each replay, where only the GPU's time passes."""

        size = 0

        def replay(self):
            launched.append(self.size)
            now[0] += self.size * gpu_ms

    @contextlib.contextmanager
    def capturing(graph, capture_error_mode):
        assert capture_error_mode == "thread_local"
        before = len(seen)
        yield
        graph.size = len(seen) - before
        assert seen[before:] == [number % sets for number in range(graph.size)]

    def call(number):
        seen.append(number)
        now[0] += host_ms

    def elapsed(batch):
        before = now[0]
        batch()
        return now[0] - before

    seen, launched, now = [], [], [0.0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(contest, "elapsed_ms", elapsed)
    batches, counts, launches = contest.make_batches({"ours": call}, [(number,) for number in range(sets)])
    launched.clear()
    took, size = elapsed(batches["ours"]), launched[0]
    assert launches == "graph" and sum(launched) == counts["ours"] and set(launched) == {size}
    assert size % sets == 0 and size < contest.GRAPH + sets
    assert size >= min(contest.GRAPH, contest.BATCH_MS / host_ms - sets / 2)
    assert abs(took - contest.BATCH_MS) <= max(sets * gpu_ms, size * gpu_ms / 2) + 1e-6


def test_the_host_cost_is_of_the_calls_alone(monkeypatch):
    """A median over batches, of the calls and not of what the GPU still has to do; the first batch counts nothing."""
    now, calls, emptied = [0.0], {"ours": 0, "peer": 0}, []
    monkeypatch.setattr(contest.time, "perf_counter", lambda: now[0])

    def call(who, seconds):
        calls[who] += 1
        now[0] += seconds if calls[who] > contest.HOST_CALLS else 1.0  # the first batch compiles, say
        now[0] += 1.0 if calls[who] % (3 * contest.HOST_CALLS) == 0 else 0.0  # one batch in three is disturbed

    def synchronize():
        emptied.append(dict(calls))
        now[0] += 0.5

    each = {"ours": lambda: call("ours", 4e-6), "peer": lambda: call("peer", 7e-6)}
    assert contest.us_per_call(each, synchronize) == {"ours": 4.0, "peer": 7.0}
    assert set(calls.values()) == {(contest.HOST_BATCHES + 1) * contest.HOST_CALLS}
    assert all(n % contest.HOST_CALLS == 0 for state in emptied for n in state.values())
    assert len(emptied) == 2 * (contest.HOST_BATCHES + 1)


def test_the_host_cost_of_ours_and_of_each_peer_that_is_right(monkeypatch):
    import torch

    a, b, out = torch.eye(8).half(), torch.randn(8, 8).half(), torch.empty(8, 8).half()
    outs = []

    def matmul(a, b, *, out=None):
        outs.append(out)
        return torch.matmul(a, b, out=out)

    wrong = {peers.TORCH: matmul_into, peers.QUACK: lambda a, b, out: torch.add(a, b, out=out)}
    monkeypatch.setattr(peers, "peers", lambda tuned, quack: wrong)
    monkeypatch.setattr(peers, "input_sets", lambda *which: [(a, b, out)])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    costs = peers.host_costs.__wrapped__(matmul, "float16")
    assert set(costs) == {contest.OURS, peers.TORCH}
    assert all(set(cost) == {"host_us", "host_new_us"} and min(cost.values()) > 0 for cost in costs.values())
    assert outs.count(None) == len(outs) // 2  # one more is the look whether ours is right


def matmul_into(a, b, out):
    import torch

    return torch.matmul(a, b, out=out)


def test_too_few_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds: got 6; needed at least 7"):
        bench.bench("hopper/tma_wgmma_gemm", rounds=6)


def test_torch_is_always_a_peer():
    import torch

    a, b, out = torch.eye(3), torch.randn(3, 3), torch.empty(3, 3)
    peers.peers()[peers.TORCH](a, b, out)
    assert torch.equal(out, b)


def test_quack_can_be_left_out(monkeypatch):
    """Left out it is not even imported: importing it, and tuning it, is what takes the time."""
    imported = []

    class Quack(types.ModuleType):
        def __getattr__(self, name):
            imported.append(name)
            return lambda a, b, out, tuned: None

    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", Quack("quack.gemm_interface"))
    assert list(peers.peers(quack=False)) == [peers.TORCH] and not imported
    assert list(peers.peers()) == [peers.TORCH, peers.QUACK] and "gemm" in imported


def test_all_sizes_are_those_that_the_majors_can_have():
    gemm, transpose = catalog.find("hopper/majors_gemm"), catalog.find("foundations/matrix_transpose")
    assert bench.all_sizes(gemm, "tn") == bench.ALL_SIZES
    assert set(bench.ALL_SIZES) - set(bench.all_sizes(gemm, "nt")) == {(8191, 8191, 8192)}
    assert bench.all_sizes(transpose) == bench.default_shapes(transpose)
    assert all(k % 8 == 0 for _, _, k in bench.ALL_SIZES)
    assert [m for m, n, k in bench.ALL_SIZES if m == n == k] == [2**e for e in range(9, 15)]


def test_a_peer_that_fails_or_is_wrong_is_left_out(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    a, b = torch.randn(64, 32).half(), torch.randn(32, 48).half()
    operands = (a, b, torch.empty(64, 48).half())

    def broken(a, b, out):
        raise RuntimeError("no kernel for this machine")

    assert peers.agrees("quack", lambda a, b, out: torch.matmul(a, b, out=out), operands, "float16")
    assert not peers.agrees("quack", lambda a, b, out: out.zero_(), operands, "float16")
    assert not peers.agrees("quack", lambda a, b, out: None, operands, "float16")  # leaves the poison
    assert not peers.agrees("quack", broken, operands, "float16")
    with pytest.raises(RuntimeError, match="no kernel"):
        peers.agrees(contest.OURS, broken, operands, "float16")
    with pytest.raises(RuntimeError, match="ours is wrong"):
        peers.agrees(contest.OURS, lambda a, b, out: out.zero_(), operands, "float16")


def test_every_variant_is_timed_and_must_be_right(monkeypatch):
    import torch

    def matmul(a, b, *, out=None, variant="good"):
        return out.zero_() if variant == "bad" else torch.matmul(a, b, out=out)

    a, b, out = torch.eye(3), torch.randn(3, 3), torch.empty(3, 3)
    calls = peers.own_variants(types.SimpleNamespace(matmul=matmul, VARIANTS={"good": None, "bad": None}))
    assert list(calls) == ["good", "bad"]
    calls["good"](a, b, out)
    assert torch.equal(out, b)
    calls["bad"](a, b, out)
    assert not out.any()
    assert peers.own_variants(types.SimpleNamespace(matmul=matmul)) == {}

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    operands, ours = (a.half(), b.half(), out.half()), (contest.OURS, *calls)
    assert peers.agrees("good", calls["good"], operands, "float16", ours)
    with pytest.raises(RuntimeError, match="bad is wrong"):
        peers.agrees("bad", calls["bad"], operands, "float16", ours)


def test_a_recipe_named_in_the_front_matter_is_one_more_peer(monkeypatch):
    """It is timed by its own name, and the record is stale once its code changes."""
    import torch

    def matmul(a, b, *, out=None):
        return torch.matmul(a, b, out=out)

    operands = torch.eye(8).half(), torch.randn(8, 8).half(), torch.empty(8, 8).half()
    module = types.SimpleNamespace(matmul=matmul, CONFIG=None)
    monkeypatch.setattr(peers, "input_sets", lambda *which: [operands])
    monkeypatch.setattr(peers, "peers", lambda quack: {peers.TORCH: matmul_into})
    monkeypatch.setattr(gemm, "configured", lambda config, majors: config)
    monkeypatch.setattr(gemm.compiled, "arch_here", lambda: "sm_90a")
    monkeypatch.setattr(gemm.catalog, "load", lambda name: module)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    peer = "ampere/tuned_gemm"
    held = gemm.PRODUCT.plain_contest(module, (8, 8, 8), "float16", compared_with=peer)
    assert list(held.variants) == [contest.OURS, peers.TORCH, peer] and held.of == (peer,)
    assert gemm.PRODUCT.plain_contest(module, (8, 8, 8), "float16").of == ()
    timed = {who: {"median_ms": ms} for who, ms in ((contest.OURS, 2.0), (peers.TORCH, 1.0), (peer, 3.0))}
    timed |= {"rounds": 7, "batch": 1, "launches": "graph", "sets": 2}
    record = contest.record_of("hopper/tuned_gemm", held, (8, 8, 8), "float16", timed)
    assert record["peers"][peer]["ratio"] == 1.5 and record["of"] == {peer: records.code_of(peer)}
    assert not records.is_stale(record) and records.is_stale(record | {"of": {peer: "0"}})


def test_a_recipe_beside_that_is_wrong_is_left_out(monkeypatch):
    import torch

    operands = torch.eye(8).half(), torch.randn(8, 8).half(), torch.empty(8, 8).half()
    module = types.SimpleNamespace(matmul=lambda a, b, out: torch.matmul(a, b, out=out), CONFIG=None)
    monkeypatch.setattr(peers, "input_sets", lambda *which: [operands])
    monkeypatch.setattr(peers, "peers", lambda quack: {})
    monkeypatch.setattr(gemm, "configured", lambda config, majors: config)
    monkeypatch.setattr(gemm.compiled, "arch_here", lambda: "sm_90a")
    wrong = types.SimpleNamespace(matmul=lambda a, b, out: out.zero_())
    monkeypatch.setattr(gemm.catalog, "load", lambda name: wrong)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    held = gemm.PRODUCT.plain_contest(module, (8, 8, 8), "float16", compared_with="ampere/tuned_gemm")
    assert list(held.variants) == [contest.OURS] and held.of == ()


def reducing(monkeypatch, **changed):
    """A GEMM that finds the largest |C|, by torch, and what its contest stands on, on the CPU."""
    import torch

    def matmul_amax(a, b, *, out=None, amax=None):
        c = torch.matmul(a, b, out=out)
        return c, c.abs().amax().float()[None]

    named = {"CONFIG": None, "matmul_amax": matmul_amax, "PEERS": catalog.load(REDUCES).PEERS} | changed
    named["matmul"] = lambda a, b, *, out=None: named["matmul_amax"](a, b, out=out)[0]
    operands = torch.randn(24, 16).bfloat16(), torch.randn(40, 16).bfloat16().T, torch.empty(24, 40).bfloat16()
    monkeypatch.setattr(peers, "input_sets", lambda *which: [operands])
    monkeypatch.setattr(gemm, "configured", lambda config, majors: config)
    monkeypatch.setattr(gemm.compiled, "arch_here", lambda: "sm_90a")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return types.SimpleNamespace(**named)


def test_an_amax_gemm_is_timed_next_to_torchs(monkeypatch):
    module = reducing(monkeypatch)
    held = reducing_product.PRODUCT.plain_contest(module, (24, 40, 16), "bfloat16", quack=False, own=False)
    assert list(held.variants) == [contest.OURS, peers.TORCH, *module.PEERS] and module.PEERS
    for name in module.PEERS:
        a, b, out = held.sets[0]
        c, amax = held.variants[name](a, b, out.zero_())
        assert c is out and out.equal(a @ b) and amax.item() == (a @ b).abs().amax().item()


def test_a_wrong_largest_element_is_not_timed(monkeypatch):
    import torch

    def largest(a, b, *, out=None, amax=None):
        c = torch.matmul(a, b, out=out)
        return c, c.amax().sub(1.0)

    wrong = {"matmul_amax": largest}, {"PEERS": {"peer": lambda a, b, out: largest(a, b, out=out)}}
    for changed, who in zip(wrong, (contest.OURS, "peer"), strict=True):
        with pytest.raises(RuntimeError, match=rf"{who} is wrong: the largest \|C\| is "):
            module = reducing(monkeypatch, **changed)
            reducing_product.PRODUCT.plain_contest(module, (24, 40, 16), "bfloat16", quack=False)


@pytest.mark.parametrize(("n", "k"), [(8, 8), (8, 16)])
def test_a_chain_is_timed_next_to_torchs_with_square_weights(monkeypatch, n, k):
    import torch

    def chain(x, weights, *, out):
        seen.append([each.data_ptr() for each in weights])
        for weight in weights:
            x = x @ weight
        return out.copy_(x)

    seen = []
    module = types.SimpleNamespace(matmul=lambda a, b, out: torch.matmul(a, b, out=out), CONFIG=None, chain=chain)
    sets = [(torch.randn(4, k), torch.randn(n, k).T, torch.empty(4, n)) for _ in range(3)]
    monkeypatch.setattr(peers, "input_sets", lambda *which: sets)
    monkeypatch.setattr(peers, "peers", lambda quack: {})
    monkeypatch.setattr(gemm, "configured", lambda config, majors: config)
    monkeypatch.setattr(gemm.compiled, "arch_here", lambda: "sm_90a")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    held = linked.PRODUCT.plain_contest(module, (4, n, k), "float32")
    chains = {linked.CHAIN, linked.TORCH_CHAIN} if n == k else set()
    assert set(held.variants) == {contest.OURS} | chains
    assert held.scale == dict.fromkeys(chains, 1 / linked.LINKS)  # a record tells the time of one product
    for operands in sets if chains else ():
        held.variants[linked.CHAIN](*operands)
        expected = operands[2].clone()
        held.variants[linked.TORCH_CHAIN](*operands)
        torch.testing.assert_close(operands[2], expected)
    assert all(len(each) == linked.LINKS for each in seen) and len({each[0] for each in seen}) == len(seen[1:])


def test_a_chain_that_is_wrong_is_not_timed():
    import torch

    sets = [(torch.randn(4, 8).bfloat16(), torch.randn(8, 8).bfloat16().T, torch.empty(4, 8).bfloat16())] * 2
    module = types.SimpleNamespace(chain=lambda x, weights, *, out: out.copy_(x @ weights[0]))
    with pytest.raises(RuntimeError, match="chain of 8 is wrong: relative error"):
        linked.chains(module, sets)


def test_a_record_has_the_clocks_of_its_own_run(monkeypatch):
    """With no GPU: a contest that is not run, and a GPU that says its clock while it would be."""
    import torch

    figures = {"median_ms": 1.0, "min_ms": 1.0, "max_ms": 1.0, "tflops": 1.0}
    held = contest.Contest({"ours": print, "torch.matmul": print}, [()], "torch.matmul", 1e9)
    running = []

    @contextlib.contextmanager
    def watched():
        found = {}
        running.append(True)
        yield found
        running.pop()
        found["clock_mhz"] = 1350.0

    def time_contest(contest, rounds):
        assert running
        return {"ours": dict(figures), "torch.matmul": dict(figures), "rounds": rounds, "batch": 1} | {
            "launches": "graph",
            "sets": 1,
        }

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Test")
    monkeypatch.setattr(records, "target_here", lambda: "sm_90a")
    monkeypatch.setattr(gemm.Gemm, "contest", lambda *_: held)
    monkeypatch.setattr(peers, "host_costs", lambda *_: {})
    monkeypatch.setattr(bench, "time_contest", time_contest)
    monkeypatch.setattr(bench.power, "watched", watched)
    (made,) = bench.bench("hopper/tma_wgmma_gemm", [(512, 512, 512)], ["bfloat16"])
    assert made["gpu"] == {"clock_mhz": 1350.0} and made["device"] == "NVIDIA Test" and made["figures"]["ratio"] == 1.0
