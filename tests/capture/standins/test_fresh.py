"""Which calls make tensors that forward changes in place, by the text of code."""

import pytest

from edbc.capture.standins.fresh import _told_by

FRESH = """
a = torch.zeros(3).index_add_(0, i, x)
b = torch.zeros_like(x).add_(x).mul_(2)
c = x.new_zeros(3)
c.add_(x)
c = c.mul_(3)
for e in edges:
    c.add_(e)
d = c.exp_()
"""
SHOWN = """
x.add_(1)
x.view(3).add_(x)
a = torch.zeros(3)
b = a[:2]
a.add_(x)
c = torch.zeros(3)
c.add_(c)
d = torch.ones(3)
kept.append(d)
d.add_(x)
e = torch.as_tensor(x)
e.add_(x)
if x:
    f = torch.zeros(3)
f.add_(x)
g = h = torch.zeros(3)
g.add_(x)
"""


@pytest.mark.parametrize(("text", "count"), [(FRESH, 3), (SHOWN, 0), ("def", 0)])
def test_fresh_tensors_are_changed_before_all_else(text: str, count: int) -> None:
    """In the expression that makes them, or in the same block by way of a variable."""
    assert len(_told_by(text)[0]) == count
