"""What keeps hostile arguments and callers out, and how to break it, one place each: see `mechanisms`."""

from __future__ import annotations

from mechanisms import Mechanism

ARGUMENTS = "tests/trust/test_hostile_arguments.py"
CALLERS = "tests/trust/test_hostile_callers.py"

HOSTILE = (
    Mechanism(
        "repeat",
        "forward is not run again when compiling",
        "edbc/tools/compile/compiler.py",
        "    require_repeatable(view, table, (shadow, recorder), training[0], run_segment)\n",
        "",
        ("tests/capture/forward/test_repeat.py",),
    ),
    Mechanism(
        "default device",
        "default devices move edbc's own tensors",
        "edbc/capture/semantics/modes.py",
        "        if not _num_modes():\n",
        "        if True:\n",
        (CALLERS,),
    ),
    Mechanism(
        "storage",
        "whether a parameter still has its memory is not asked",
        "edbc/run/weights/touched.py",
        "    if count and (last + 1) * tensor.itemsize > held:\n",
        "    if False:\n",
        (CALLERS,),
    ),
    Mechanism(
        "moved",
        "models that moved to another device are not noticed",
        "edbc/run/weights/touched.py",
        "            if tensor.device.type != device.type:\n",
        "            if False:\n",
        (CALLERS,),
    ),
    Mechanism(
        "transforms",
        "transforms that would see nothing are not refused",
        "edbc/run/session.py",
        "        _refuse_transforms()\n",
        "",
        (CALLERS,),
    ),
    Mechanism(
        "symbols",
        "every process numbers what it compiles from 1",
        "edbc/native/kernelcache.py",
        "\ncount_apart()\n",
        "\n",
        ("tests/native/test_kernelcache.py",),
    ),
    Mechanism(
        "targets",
        "outputs go over what the command reads",
        "edbc/base/files.py",
        '        if os.path.realpath(other) == str(target) or (found != "nothing" and _is_same(other, target)):\n',
        "        if False:\n",
        (ARGUMENTS,),
    ),
)
