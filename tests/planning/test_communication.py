"""What GPUs send, by hand for a small model."""

import pytest

from mars.planning.communication import Traffic, transfers
from mars.planning.gpus import gpu_of
from mars.planning.inventory import take_inventory
from mars.planning.layout import layout_of
from planning.steps import OPTIMIZERS, WIDE

WIDTH = WIDE.width
MATRICES = WIDE.layers * 12 * WIDTH**2
BLOCKS = MATRICES + WIDE.layers * 2 * WIDTH
OUTSIDE = (WIDE.vocab_size + WIDE.context_length + 1) * WIDTH
ALL = BLOCKS + OUTSIDE


def sent(mode, gpus, *, optimizer="mars-adamw", replicas=None, precision="bfloat16", times=1):
    """Return what is sent by kind, in bytes, and the seconds of it."""
    traffic = Traffic(
        inventory=take_inventory(WIDE, OPTIMIZERS[optimizer]),
        layout=layout_of(mode, gpus=gpus, replicas=replicas),
        precision=precision,
        micro_batches=times,
        evaluations=2 if OPTIMIZERS[optimizer].exact else 1,
        gpu=gpu_of("h100"),
    )
    found = transfers(traffic)
    made = {f"{each.operation} of {each.what}": each for each in found}
    assert len(made) == len(found)
    return made


def bytes_of(made):
    return {kind: each.bytes for kind, each in made.items() if "norms" not in kind}


def test_one_gpu_sends_nothing():
    assert sent("none", 1) == {}


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_ddp_reduces_its_gradients_in_float32(gpus):
    expected = 2 * (gpus - 1) * 4 * ALL // gpus
    assert bytes_of(sent("ddp", gpus)) == {"all-reduce of gradients": expected}
    assert bytes_of(sent("ddp", gpus, times=4)) == {"all-reduce of gradients": expected}


@pytest.mark.parametrize("optimizer", ["mars-m", "mars-shampoo", "lean mars-m", "muon"])
def test_matrix_rules_under_ddp_gather_the_directions(optimizer):
    made = bytes_of(sent("ddp", 4, optimizer=optimizer))
    assert made["broadcasts of matrices"] == 3 * 4 * MATRICES // 4


@pytest.mark.parametrize(("precision", "size"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_fsdp2_gathers_blocks_twice_in_the_precision_and_the_rest_once(precision, size):
    made = bytes_of(sent("fsdp2", 4, precision=precision))
    assert made == {
        "all-gather of parameters": 3 * (2 * size * BLOCKS + 4 * OUTSIDE) // 4,
        "reduce-scatter of gradients": 3 * 4 * ALL // 4,
    }


def test_micro_batches_are_gathered_for_and_reduced_once():
    once, four = (bytes_of(sent("fsdp2", 4, times=times)) for times in (1, 4))
    assert four["all-gather of parameters"] == 4 * once["all-gather of parameters"]
    assert four["reduce-scatter of gradients"] == once["reduce-scatter of gradients"]


def test_matrix_rules_under_fsdp2_send_each_share_there_and_back():
    made = bytes_of(sent("fsdp2", 4, optimizer="mars-m"))
    assert made["all-to-all of matrices"] == 3 * (2 * 4 * MATRICES // 4) // 4


def test_hsdp_reduces_shards_between_replicas():
    inside, groups = bytes_of(sent("fsdp2", 4)), bytes_of(sent("hsdp", 8, replicas=2))
    between = groups.pop("all-reduce of gradients of replicas")
    assert groups == inside
    assert between == 2 * 4 * (ALL // 4) // 2


def test_matrix_rules_under_hsdp_send_directions_from_replica_to_replica():
    made = bytes_of(sent("hsdp", 8, optimizer="mars-m", replicas=2))
    assert made["all-to-all of matrices"] == 3 * (2 * 4 * MATRICES // 8) // 4
    assert made["broadcasts of matrices"] == (4 * MATRICES // 4) // 2


@pytest.mark.parametrize(("mode", "replicas"), [("ddp", None), ("fsdp2", None), ("hsdp", 2)])
def test_exact_mode_sends_parameters_and_gradients_twice(mode, replicas):
    once, twice = (
        bytes_of(sent(mode, 8, optimizer=name, replicas=replicas))
        for name in ("mars-adamw", "exact")
    )
    # Rounded down to whole bytes once.
    assert {kind: 2 * count for kind, count in once.items()} == pytest.approx(twice, abs=2)


def test_norms_are_one_number_a_tensor():
    tensors = WIDE.layers * 6 + 3
    assert sent("fsdp2", 4)["all-reduce of norms"].bytes == 3 * 2 * 8 * tensors // 4


def test_the_link_inside_a_node_serves_groups_of_eight():
    gpu = gpu_of("h100")
    near, far = (sent("fsdp2", gpus)["reduce-scatter of gradients"] for gpus in (8, 16))
    assert near.seconds == pytest.approx(near.bytes / (1e9 * gpu.node_link))
    assert far.seconds == pytest.approx(far.bytes / (1e9 * gpu.link))


def test_hsdp_gathers_inside_the_node_and_reduces_between_nodes():
    gpu, made = gpu_of("h100"), sent("hsdp", 16)
    gathered, reduced = (
        made["all-gather of parameters"],
        made["all-reduce of gradients of replicas"],
    )
    assert gathered.seconds == pytest.approx(gathered.bytes / (1e9 * gpu.node_link))
    assert reduced.seconds == pytest.approx(reduced.bytes / (1e9 * gpu.link))
