"""What keeps gradients right, and how to break it, one place each: see `mechanisms`."""

from __future__ import annotations

from mechanisms import Mechanism

MODELS = "tests/training/test_training_models.py"
TREES = "tests/training/test_training_trees.py"
NATIVE = "tests/training/test_native_gradients.py"
RANDOM = "tests/training/test_random.py"
MODE = "tests/training/test_grad_mode.py"

TRAINING = (
    Mechanism(
        "lease",
        "arenas go back to the pool when the forward pass has run",
        "edbc/training/function.py",
        "        net.backend.execute(segment, self.arenas, self.trainer.kernel)\n",
        "        net.backend.execute(segment, self.arenas, self.trainer.kernel)\n"
        "        self.arenas._pool.give(self.arenas._buffer)\n",
        (TREES + "::test_two_mini_batches_before_one_backward", TREES + "::test_a_forward_in_another_thread"),
    ),
    Mechanism(
        "retain_graph",
        "what was saved is overwritten though the graph is kept",
        "edbc/training/function.py",
        "return True if ask is None else bool(ask())",
        "return False",
        (TREES + "::test_a_kept_graph_runs_again", NATIVE + "::test_a_kept_graph_keeps_what_was_saved"),
    ),
    Mechanism(
        "versions",
        "changes of parameters before the backward pass are not asked about",
        "edbc/training/function.py",
        "        _ = ctx.saved_tensors  # raises",
        "        # raises",
        (TREES + "::test_parameters_that_change_before_backward_are_an_error",),
    ),
    Mechanism(
        "generations",
        "packed weights trust version counters alone",
        "edbc/training/trainer.py",
        "        changes.count()\n",
        "",
        (TREES + "::test_parameters_changed_through_data",),
    ),
    Mechanism(
        "create_graph",
        "gradients of gradients are given as if they were constants",
        "edbc/training/function.py",
        "        if torch.is_grad_enabled():\n",
        "        if False:\n",
        (TREES + "::test_gradients_of_gradients_are_refused",),
    ),
    Mechanism(
        "sums",
        "gradients of rows are stored by index, not added",
        "edbc/training/reverse.py",
        "arena.index_add_(0, torch.from_numpy(rows).to(arena.device), gradient.reshape(len(rows), -1).to(arena.dtype))",
        "arena[torch.from_numpy(rows)] += gradient.reshape(len(rows), -1).to(arena.dtype)",
        (MODELS + "::test_gradients_equal_eager", TREES + "::test_random_cells"),
    ),
    Mechanism(
        "chunks",
        "the last chunk of a weight's product is left out",
        "edbc/training/walk.py",
        "    if filled:\n",
        "    if filled == block:\n",
        (MODELS + "::test_gradients_equal_eager",),
    ),
    Mechanism(
        "None",
        "parameters that the loss does not reach get zeros",
        "edbc/training/function.py",
        "found.get(ref) if ref in wanted else None for ref",
        "found.get(ref, torch.zeros_like(self.inputs.parameters[ref])) for ref",
        (TREES + "::test_parts_of_the_results", TREES + "::test_a_parameter_that_no_instance_needs_stays_none"),
    ),
    Mechanism(
        "repeated operands",
        "an operand's gradient replaces what its row had",
        "edbc/training/adjoint.py",
        "        adds = to in self.written or (isinstance(target[0], int) and target[0] > WORKSPACE)\n",
        "        adds = to in self.written\n",
        (MODELS + "::test_gradients_equal_eager",),
    ),
    Mechanism(
        "inside a batch",
        "rows of live nodes are counted from the first of the batch",
        "edbc/training/walk.py",
        "            r = batches.live[i]\n",
        "            r = i - batches.live_ptr[b]\n",
        (TREES + "::test_parts_of_the_results",),
    ),
    Mechanism(
        "sparse",
        "sparse tables get dense gradients",
        "edbc/training/native.py",
        "if look_up is not None and look_up.sparse:",
        "if False:",
        (MODELS + "::test_embeddings",),
    ),
    Mechanism(
        "hooks",
        "hooks of modules in cells are ignored",
        "edbc/trace/shadow.py",
        "    refuse_hooks(view.model, lambda module: is_cell(module) or is_leaf(module))\n",
        "",
        (MODELS + "::test_hooks_of_modules_inside_cells_are_refused",),
    ),
    Mechanism(
        "masks per node",
        "an instance has one mask",
        "edbc/trace/recorder.py",
        "(self.instance << INSTANCE_BITS) + number, slot",
        "self.instance << INSTANCE_BITS, slot",
        (RANDOM + "::test_eager_s_distribution", RANDOM + "::test_values_and_gradients_given_the_numbers"),
    ),
    Mechanism(
        "masks per instance",
        "a mini-batch has one seed",
        "edbc/runtime/draws.py",
        "(len(instances),)).numpy()",
        "(1,)).numpy()",
        (RANDOM + "::test_numbers_depend_on_the_seed_alone",),
    ),
    Mechanism(
        "no_grad",
        "nodes recorded without gradients pass them on",
        "edbc/training/reach.py",
        "        if len(detached) and detached[v]:\n",
        "        if False:\n",
        (MODE + "::test_gradients_equal_eager",),
    ),
    Mechanism(
        "no_grad in sums",
        "detached sums are fused with others",
        "edbc/trace/build.py",
        "of_entry.is_sum[entries] & ~detached",
        "of_entry.is_sum[entries]",
        (MODE + "::test_gradients_equal_eager",),
    ),
    Mechanism(
        "no_grad in cells",
        "views and a cell's operations pass gradients without them",
        "edbc/trace/special.py",
        "        if kind in (Value, Shared) and not is_told:\n",
        "        if False:\n",
        (MODE + "::test_gradients_equal_eager", MODE + "::test_inside_a_cell"),
    ),
)
