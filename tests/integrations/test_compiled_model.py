"""torch.compile, with its default backend."""

import pytest
import torch

from problems import assert_close

RECIPE = "compiled_model"
# The compiler's own warnings are not ours to fix; those of mars stay errors.
pytestmark = pytest.mark.filterwarnings("ignore", "error:::mars")


@pytest.mark.parametrize("exact", [False, True], ids=["approx", "exact"])
def test_a_model_is_compiled_once_and_follows_the_eager_one(recipe, exact):
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled, compiled_losses = recipe.train(20, exact=exact)
    assert counters["stats"]["unique_graphs"] == 1
    eager, eager_losses = recipe.train(20, exact=exact, compiled=False)
    # Fused kernels round at other places: 1e-7 a step in float32, which AdamW's division by the
    # gradient's own size carries into the weights; measured 1e-7 after 20 steps.
    assert_close(list(compiled.parameters()), list(eager.parameters()), 1e-5)
    assert compiled_losses == pytest.approx(eager_losses, rel=1e-5)
