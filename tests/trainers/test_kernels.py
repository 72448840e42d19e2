"""Kernels agree with their plain forms in every bit; all comparisons are exact."""

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from tests.support.patience import crowd
from trainers.exchange.kernels import operators, scatter
from trainers.exchange.kernels.entries import Entries, Selected, Velocity
from trainers.exchange.kernels.pack import pack, sum_unpacked, unpack
from trainers.exchange.kernels.quantile import reached_by, strided
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.kernels.select import MomentumCorrection, select
from trainers.traffic.payload_layout import BLOCK, PayloadLayout

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: its kernels are not compared with the CPU's")
ODD = [0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, math.inf, -math.inf, math.nan]
#: What rows of 64 entries, and a last one that is shorter, can get wrong.
LENGTHS = [1, 63, 64, 65, 128, 1000]
NO_TRITON = pytest.mark.skipif(
    find_spec("triton") is None,
    reason="NO TRITON (`pip install triton`): the GPU's kernels were not run, not even on a CPU",
)


class Split(NamedTuple):
    """What a selection leaves behind."""

    selected: Selected
    sent: Entries
    kept: Tensor


def vectors(length: int, seed: int, num: int = 2) -> list[Tensor]:
    """Return vectors with ties, zeros and, for one seed in two, what is not finite."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(length, generator=generator) for _ in range(num)]
    for vector in drawn:
        odd = torch.randint(length, (1 + length // 8,), generator=generator)
        choices = torch.tensor(ODD if seed % 2 else ODD[:6])
        vector[odd] = choices[torch.randint(len(choices), odd.shape, generator=generator)]
    return drawn


def split_plainly(corrected: Tensor, threshold: float, capacity: int) -> Split:
    """Return what a selection must do, one entry after the other."""
    cutoff = np.float32(threshold)
    hits = [place for place, value in enumerate(corrected.numpy()) if abs(value) >= cutoff]
    kept, sent = corrected.clone(), torch.tensor(hits[:capacity], dtype=torch.int32)
    kept[sent] = 0.0
    selected = Selected(torch.tensor(len(hits)), torch.tensor(np.isfinite(corrected.numpy()).all()))
    return Split(selected, Entries(sent, corrected[sent]), kept)


def split_by(select: Callable[..., Selected], terms: list[Tensor], threshold: float, capacity: int) -> Split:
    room, kept = room_for(capacity, terms[0]), torch.full_like(terms[0], math.nan)
    selected = select(*terms, cutoff(threshold, terms[0]), next_residual=kept, room=room)
    return Split(selected, used(room, terms[0]), kept)


def room_for(capacity: int, vector: Tensor) -> Entries:
    return Entries.room(capacity, len(vector), vector.device)


def cutoff(threshold: float, vector: Tensor) -> Tensor:
    return torch.tensor(threshold, device=vector.device)


def used(entries: Entries, vector: Tensor) -> Entries:
    return Entries(entries.indices.cpu(), entries.values.cpu()).used(len(vector))


def bits(vector: Tensor) -> list[int]:
    """Return the bits of float32, with one kind of NaN."""
    vector = vector.cpu()
    return torch.where(vector.isnan(), math.nan, vector).view(torch.int32).tolist()


def assert_found_alike(selected: Selected, expected: Selected) -> None:
    assert [each.item() for each in selected] == [each.item() for each in expected]


def assert_same(split: Split, expected: Split) -> None:
    assert_found_alike(split.selected, expected.selected)
    assert split.sent.indices.tolist() == expected.sent.indices.tolist()
    assert bits(split.sent.values) == bits(expected.sent.values)
    assert bits(split.kept) == bits(expected.kept)


@pytest.mark.parametrize("implementation", [select, operators.select])
@settings(deadline=None, max_examples=60)
@given(
    length=st.sampled_from(LENGTHS),
    seed=st.integers(0, 999),
    threshold=st.sampled_from([0.0, 0.1, 1.0, 2.0, 3.4e38, math.inf, math.nan]),
    room=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
)
def test_select_splits_gradient_plus_residual(implementation, length: int, seed: int, threshold: float, room: float):
    terms, capacity = vectors(length, seed), int(room * length)

    split = split_by(implementation, terms, threshold, capacity)

    assert_same(split, split_plainly(terms[0] + terms[1], threshold, capacity))


def test_select_leaves_its_inputs_alone():
    terms = vectors(1000, seed=0)
    before = [term.clone() for term in terms]

    split_by(select, terms, 0.5, 1000)

    assert all(torch.equal(term, old) for term, old in zip(terms, before, strict=True))


def test_select_without_a_memory_takes_the_gradient_itself():
    gradient = vectors(1000, seed=0)[0]
    room = room_for(100, gradient)

    selected = select(gradient, None, torch.tensor(1.0), next_residual=None, room=room)

    expected = split_plainly(gradient, 1.0, 100)
    assert_found_alike(selected, expected.selected)
    assert torch.equal(used(room, gradient).indices, expected.sent.indices)


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_correction_follows_its_formula(nesterov: bool):
    # Eighths and a half: nothing is rounded, so both forms of the formula agree in every bit.
    g, u, v = (torch.randint(-64, 65, (1000,)) / 8 for _ in range(3))
    new, room = Velocity(torch.empty(1000), torch.empty(1000)), Entries.room(300, 1000)

    correction = MomentumCorrection(0.5, nesterov, masks=False)
    selected = correction.select(g, Velocity(u, v), torch.tensor(8.0), next_state=new, room=room)

    momentum = 0.5 * (u + g) if nesterov else 0.5 * u + g
    velocity = v + momentum + g if nesterov else v + momentum
    assert torch.equal(new.momentum, momentum)
    assert_same(Split(selected, used(room, g), new.velocity), split_plainly(velocity, 8.0, 300))


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("nesterov", [True, False])
def test_operators_correct_momentum_bit_for_bit_as_the_kernel_does(nesterov: bool, seed: int):
    correction = MomentumCorrection(0.9, nesterov, masks=False)
    g, u, v = vectors(1000, seed, num=3)
    news = [Velocity(torch.empty(1000), torch.empty(1000)) for _ in range(2)]
    rooms = [Entries.room(100, 1000), Entries.room(100, 1000)]

    one = torch.tensor(1.0)
    found = [
        correction.select(g, Velocity(u, v), one, next_state=news[0], room=rooms[0]),
        operators.select_velocity(correction.factors, (g, Velocity(u, v), news[1]), one, rooms[1]),
    ]

    splits = [Split(*each) for each in zip(found, rooms, (new.velocity for new in news), strict=True)]
    assert_same(*splits)
    assert bits(news[0].momentum) == bits(news[1].momentum)


def test_masking_forgets_the_momentum_of_what_is_sent_only():
    g, u, v = vectors(1000, seed=2, num=3)
    masked, unmasked = (Velocity(torch.empty(1000), torch.empty(1000)) for _ in range(2))
    room, threshold = Entries.room(50, 1000), torch.tensor(1.0)

    MomentumCorrection(0.9, masks=False).select(g, Velocity(u, v), threshold, next_state=unmasked, room=room)
    MomentumCorrection(0.9, masks=True).select(g, Velocity(u, v), threshold, next_state=masked, room=room)

    unmasked.momentum[room.indices] = 0.0
    assert torch.equal(masked.momentum, unmasked.momentum)
    assert torch.equal(masked.velocity, unmasked.velocity)


def test_momentum_correction_without_momentum_is_error_feedback():
    gradient, velocity = vectors(1000, seed=2)
    new, room = Velocity(torch.empty(1000), torch.empty(1000)), Entries.room(1000, 1000)

    state = Velocity(torch.zeros(1000), velocity)
    selected = MomentumCorrection(0.0).select(gradient, state, torch.tensor(1.0), next_state=new, room=room)

    feedback = split_by(select, [gradient, velocity], 1.0, 1000)
    assert_found_alike(selected, feedback.selected)
    assert torch.equal(used(room, gradient).values, feedback.sent.values)
    assert torch.equal(new.velocity, feedback.kept)


@pytest.mark.parametrize("implementation", [scatter_add, operators.scatter_add])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_scatter_add_rounds_the_product_and_then_the_sum(implementation: Callable[..., None], count: int):
    out, values = torch.randn(5000), torch.randn(count)
    entries = Entries(torch.randperm(5000)[:count].sort().values.int(), values)
    expected = out.clone()
    expected[entries.indices] += values * (1 / 3)

    implementation(out, entries, 1 / 3)

    assert torch.equal(out, expected)


def test_what_is_sent_and_what_is_kept_add_up():
    gradient, residual = torch.randn(1000), torch.randn(1000)

    split = split_by(select, [gradient, residual], 1.0, 100)
    scatter_add(split.kept, split.sent)

    assert torch.equal(split.kept, gradient + residual)


@pytest.mark.parametrize("values", ["float32", "float16"])
@settings(deadline=None, max_examples=60)
@given(
    d=st.sampled_from([1, 31, 32, 33, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]),
    density=st.sampled_from([0.0, 0.001, 0.03, 0.06, 0.2, 1.0]),
    spare=st.integers(0, 100),
    exponents=st.sampled_from([(0, 1), (-45, 37), (-45, -38), (-8, 8)]),
)
def test_a_payload_holds_its_entries(values, d: int, density: float, spare: int, exponents: tuple[int, int]):
    count = round(density * d)
    magnitudes = 10.0 ** torch.empty(count, dtype=torch.float64).uniform_(*exponents)
    entries = Entries(torch.randperm(d)[:count].sort().values.int(), (torch.randn(count) * magnitudes).float())
    layout = PayloadLayout(d, min(d, count + spare), values)
    payload, dirty = torch.zeros(layout.num_bytes, dtype=torch.uint8), torch.full((layout.num_bytes,), 255).byte()

    errors = pack(entries, layout, payload)
    pack(entries, layout, dirty)
    unpacked = unpack(payload, layout).used(d)

    assert torch.equal(dirty, payload)
    assert torch.equal(unpacked.indices, entries.indices)
    assert torch.equal(unpacked.values + errors, entries.values)


@pytest.mark.parametrize("values", ["float32", "float16", "sign"])
@pytest.mark.parametrize("count", [0, 1, 5000, 20_000])
def test_unused_slots_leave_no_trace_in_a_payload(values, count: int):
    d, generator = 70_000, torch.Generator().manual_seed(count)
    layout = PayloadLayout(d, count + 100, values)
    used = Entries(
        torch.randperm(d, generator=generator)[:count].sort().values.int(), torch.randn(count, generator=generator)
    )
    unused = Entries(torch.full((100,), d, dtype=torch.int32), torch.full((100,), math.nan))
    with_unused = Entries(*map(torch.cat, zip(used, unused, strict=True)))
    payloads = torch.empty(2, layout.num_bytes, dtype=torch.uint8)

    errors = [pack(entries, layout, payload) for entries, payload in zip((used, with_unused), payloads, strict=True)]

    if values == "sign":  # a mean, which a sum of more zeros may round otherwise
        units = payloads[:, layout.sections.unit].contiguous().view(torch.float32)
        torch.testing.assert_close(units[1], units[0])
        payloads[:, layout.sections.unit] = 0
        torch.testing.assert_close(errors[1][:count], errors[0])
    else:
        assert torch.equal(errors[1][:count], errors[0])
    assert torch.equal(*payloads)


@settings(deadline=None, max_examples=60)
@given(d=st.sampled_from([1, 2, 100]), chosen=st.sets(st.integers(0, 99)), room=st.integers(0, 110))
@pytest.mark.parametrize("by_operators", [False, True])
def test_unused_slots_have_no_effect(by_operators: bool, d: int, chosen: set[int], room: int):
    vector, hits = torch.randn(d), torch.tensor([place in chosen for place in range(d)])
    expected = [place for place in range(d) if place in chosen][:room]
    kernels = operators if by_operators else scatter

    found = kernels.places(hits, room)
    taken = kernels.take(vector, found)
    cleared, restored = vector.clone(), vector.clone()
    kernels.clear(cleared, found)
    kernels.scatter_add(restored, taken, -1.0)

    assert found.dtype == torch.int32
    assert found[found < d].tolist() == expected
    assert torch.equal(taken.used(d).values, vector[expected])
    assert cleared[expected].count_nonzero() == 0
    assert torch.equal(restored, cleared)
    assert torch.equal(cleared + vector * hits if len(expected) == hits.sum() else vector, vector)


@pytest.mark.parametrize("values", ["float32", "float16"])
@pytest.mark.parametrize("density", [0.01, 0.2])
def test_payloads_are_summed_without_being_unpacked(values, density: float):
    d, count = 3 * BLOCK + 5, round(density * 3 * BLOCK)
    layout = PayloadLayout(d, count + 10, values)
    # Behind a header, as on the wire.
    payloads = torch.empty(3, 12 + layout.num_bytes, dtype=torch.uint8)[:, 12:]
    for payload in payloads:
        pack(Entries(torch.randperm(d)[:count].sort().values.int(), torch.randn(count)), layout, payload)
    total, expected = torch.randn(d), torch.zeros(d)

    sum_unpacked(payloads, layout, total, scale=1 / 3)
    for payload in payloads:
        scatter_add(expected, unpack(payload, layout), 1 / 3)

    assert torch.equal(total, expected)


@pytest.mark.parametrize("largest", [1e-30, 1.0, 3e38])
def test_float16_keeps_eleven_bits_of_what_is_within_2_to_the_28_of_the_largest(largest: float):
    values = largest * 2.0 ** -torch.linspace(0, 28, 1000)
    layout = PayloadLayout(1000, 1000, "float16")

    errors = pack(Entries(torch.arange(1000, dtype=torch.int32), values), layout, torch.empty(layout.num_bytes).byte())

    assert torch.all(errors.abs() <= 2.0**-11 * values)


@pytest.mark.parametrize("num_bad", [1, 3])
def test_a_payload_with_what_is_not_finite_can_still_be_packed(num_bad: int):
    # Its step is void, but no rank may stop before all know that.
    values = torch.tensor([math.inf, math.nan, -math.inf][:num_bad])
    layout = PayloadLayout(10, 3, "float16")
    payload = torch.empty(layout.num_bytes, dtype=torch.uint8)

    pack(Entries(torch.arange(num_bad, dtype=torch.int32), values), layout, payload)

    assert not torch.isfinite(unpack(payload, layout).used(10).values).any()


@given(d=st.integers(1, 2**31 - 1), share=st.floats(0, 1), values=st.sampled_from(["float32", "float16"]))
def test_a_payload_is_whole_words_and_takes_the_smaller_form_of_indices(d: int, share: float, values):
    layout = PayloadLayout(d, int(share * d), values)

    values_bytes = layout.capacity * (2 if values == "float16" else 4) + (4 if values == "float16" else 0)
    bitmap_bytes, block_bytes = 4 * math.ceil(d / 32), 4 * math.ceil(d / BLOCK) + 2 * layout.capacity
    assert layout.num_bytes == 4 * math.ceil((values_bytes + min(bitmap_bytes, block_bytes)) / 4)
    assert all(part.start % 4 == 0 for part in layout.sections[:4])


@pytest.mark.parametrize(
    ("d", "capacity", "values", "named"),
    [(0, 0, "float32", "d"), (2**31, 0, "float32", "d"), (9, 10, "float32", "capacity"), (9, 9, "int8", "values")],
)
def test_a_layout_refuses_what_cannot_be(d: int, capacity: int, values, named: str):
    with pytest.raises(ValueError, match=f"`{named}` must be"):
        PayloadLayout(d, capacity, values)


@pytest.mark.parametrize("num_elements", [1000, 300_000, 1_000_000])
@pytest.mark.parametrize("density", [0.003, 0.1, 1.0])
def test_a_sampled_threshold_lets_the_planned_share_pass(num_elements: int, density: float):
    values = torch.randn(num_elements, generator=torch.Generator().manual_seed(0))

    share = float((values.abs() >= reached_by(strided(values), density)).float().mean())

    assert share == pytest.approx(density, rel=0.15)


def test_a_sample_sees_all_columns_of_a_layer():
    values = torch.zeros(4096, 128)
    values[:, 1::2] = torch.rand(4096, 64, generator=torch.Generator().manual_seed(0))

    share = float((values >= reached_by(strided(values.flatten()), 0.1)).float().mean())

    assert share == pytest.approx(0.1, rel=0.1)


def test_where_numba_is_warm_a_first_kernel_imports_no_more_of_it():
    loaded = "{name for name in sys.modules if name.startswith('numba.')}"
    add = "cpu.scatter_add(np.zeros(2), np.arange(2, dtype=np.int32), np.ones(2), 1.0)"
    kernels = "import sys, numpy as np; from trainers.exchange.kernels import cpu, warm"
    subprocess.run([sys.executable, "-c", f"{kernels}; warm = {loaded}; {add}; assert {loaded} == warm"], check=True)


@pytest.mark.parametrize("compiler", ["gcc", "clang", "CC", None])
@pytest.mark.parametrize("headers", [True, False])
def test_triton_is_taken_only_where_it_finds_a_compiler_and_headers(monkeypatch, tmp_path, compiler, headers: bool):
    places = {"PATH": tmp_path / "programs", "include": tmp_path / "include"}
    for folder in places.values():
        folder.mkdir()
    if headers:
        (places["include"] / "Python.h").touch()
    if compiler in ("gcc", "clang"):
        (places["PATH"] / compiler).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(places["PATH"]))
    monkeypatch.delenv("CC", raising=False)
    if compiler == "CC":
        monkeypatch.setenv("CC", "/opt/compilers/icx")
    monkeypatch.setattr(operators, "find_spec", lambda name: name)
    monkeypatch.setattr(operators.sysconfig, "get_path", lambda *_: str(places["include"]))

    assert operators.has_triton.__wrapped__() == (headers and compiler is not None)


@NO_TRITON
@pytest.mark.parametrize("seed", [0, 1])
def test_the_kernels_of_a_gpu_do_as_told(monkeypatch, seed: int):
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # before its kernels are defined
    from trainers.exchange.kernels import gpu

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for length, threshold, room in itertools.product([1, 1024, 5000], [0.0, 0.5, 1.0, 2.5], [0.0, 0.02, 1.0]):
        gradient, residual = (term.to(device) for term in vectors(length, seed))
        corrected, capacity = gradient + residual, int(room * length)
        expected = split_plainly(corrected.cpu(), threshold, capacity)
        kept, in_place, untouched = torch.full_like(corrected, math.nan), corrected.clone(), corrected.clone()

        for terms, into in (((gradient, residual), kept), ((in_place, None), in_place), ((untouched, None), None)):
            sent = room_for(capacity, corrected)
            with np.errstate(all="ignore"):  # the interpreter computes with numpy
                selected = gpu.select(*terms, cutoff(threshold, corrected), kept=into, room=sent)
            kept_here = expected.kept if into is None else into
            assert_same(Split(selected, used(sent, corrected), kept_here), expected)
        assert bits(untouched) == bits(corrected)

        mean, expected_mean = corrected.clone(), corrected.cpu()
        with np.errstate(all="ignore"):
            gpu.scatter_add(mean, sent, 1 / 3)
            scatter_add(expected_mean, used(sent, corrected), 1 / 3)
        assert bits(mean) == bits(expected_mean)


@NO_TRITON
def test_the_kernels_of_a_gpu_compile_for_one():
    program = Path(__file__).with_name("compile_for_gpu.py")

    subprocess.run([sys.executable, program], check=True, timeout=120 * crowd())


@NO_GPU
@pytest.mark.parametrize("length", [*LENGTHS, 5000])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_gpu_selects_and_scatters_bit_for_bit_as_the_cpu(length: int, seed: int):
    terms = vectors(length, seed)
    on_gpu = [term.cuda() for term in terms]

    split, expected = split_by(select, on_gpu, 1.0, length // 2), split_by(select, terms, 1.0, length // 2)
    assert_same(split, expected)

    scatter_add(split.kept, Entries(*(each.cuda() for each in split.sent)), 1 / 3)
    scatter_add(expected.kept, expected.sent, 1 / 3)
    assert bits(split.kept) == bits(expected.kept)


@NO_GPU
@pytest.mark.parametrize("density", [0.01, 0.2])
def test_a_gpu_packs_the_bytes_that_the_cpu_packs(density: float):
    layout = PayloadLayout(200_000, int(200_000 * density), "float16")
    indices = torch.randperm(layout.d)[: layout.capacity].sort().values.int()
    entries = Entries(indices, torch.randn(layout.capacity))
    payload = torch.empty(layout.num_bytes, dtype=torch.uint8)
    on_gpu = payload.cuda()

    pack(entries, layout, payload)
    pack(Entries(entries.indices.cuda(), entries.values.cuda()), layout, on_gpu)

    assert torch.equal(on_gpu.cpu(), payload)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(unpack(on_gpu, layout), unpack(payload, layout), strict=True))
