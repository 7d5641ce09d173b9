"""Captured data sets: what the data set gives, recorded once; files that are whole and of this net, or refused."""

from __future__ import annotations

import random
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from every_kind import Sentence, gradients, sentences, told
from helpers import bound, seeded
from test_captured import net_of
from test_structures import Base, chain, words
from torch.utils.data import DataLoader, Dataset

from edbc import Captured, CapturedDataset
from edbc.capture.captured.structurecache import CHECK_EVERY
from edbc.errors import EdbcError, InputError, StaleError


class Items(Dataset[Any]):
    """A list that counts how often each item is asked for."""

    def __init__(self, items: list[Any]):
        self.items = items
        self.asked = [0] * len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.asked[index] += 1
        return self.items[index]


def outputs(net: Any, batches: Any) -> list[Any]:
    with torch.no_grad():
        return [told(result) for batch in batches for result in net(batch)]


def test_epochs_of_a_loader_give_what_recording_gives() -> None:
    """Shuffled anew in every epoch; each item is asked for once, and once more for each check."""
    net, plain = net_of(), Items(sentences(23))
    data = CapturedDataset(plain, net)
    for epoch in range(4):
        torch.manual_seed(epoch)
        order = list(DataLoader(data, batch_size=5, shuffle=True, collate_fn=list))
        torch.manual_seed(epoch)
        expected = list(DataLoader(plain.items, batch_size=5, shuffle=True, collate_fn=list))
        assert all(type(item) is Captured for batch in order for item in batch)
        assert outputs(net, order) == outputs(net, expected)

    assert (data.misses, data.hits, data.checked) == (23, 69, 1)
    assert sum(plain.asked) == 23 + data.checked
    assert data.nbytes == sum(captured.nbytes for captured in data)


def test_labels_stand_beside_captured_instances() -> None:
    """Of tuples, lists and dicts the instance is replaced, and the rest is the data set's own, each time."""
    net, plain = net_of(), sentences(4)
    for at, make in ((0, lambda x, y: (x, y)), (1, lambda x, y: [y, x]), ("x", lambda x, y: {"x": x, "y": y})):
        labels = [0, 1, 2, 3]
        items = [make(x, y) for x, y in zip(plain, labels, strict=True)]
        data = CapturedDataset(items, net, instance=at)
        assert data[2] == make(net.capture(plain[2]), 2)
        items[2] = make(plain[2], 7)
        assert data[-2] == make(net.capture(plain[2]), 7)
    with pytest.raises(IndexError, match="no item 4"):
        data[4]
    with pytest.raises(InputError, match="item 0 of the data set: expected an instance at 'x'"):
        CapturedDataset([plain[0]], net, instance="x")[0]


def test_items_that_are_captured_already_are_given_as_they_are() -> None:
    """Beside plain ones, which are captured; checks find them unchanged."""
    net, plain = net_of(), sentences(6)
    mixed = [net.capture(item) if number % 2 else item for number, item in enumerate(plain)]
    data = CapturedDataset(mixed, net)
    for _ in range(2):
        assert list(data) == net.capture_all(plain)
    assert data.checked == 1


def test_numbers_of_samplers_are_numbers() -> None:
    """NumPy's integers and tensors of one are the items that Python's integers are."""
    data = CapturedDataset(sentences(5), net_of())
    assert data[3] == data[np.int64(3)] == data[torch.tensor(3)] == data[-2]
    assert (data.misses, data.hits) == (1, 3)
    with pytest.raises(TypeError, match="integer"):
        data["3"]


def test_modes_have_captures_of_their_own() -> None:
    """What was captured in evaluation is not given in training, nor the other way round; dropout draws as before."""
    net, plain = net_of(), sentences(6)
    data = CapturedDataset(plain, net)
    in_evaluation = outputs(net, [list(data)])
    net.model.train()
    assert gradients(net, list(data), 3) == gradients(net, plain, 3) != gradients(net, list(data), 4)
    net.model.eval()

    assert outputs(net, [list(data)]) == in_evaluation == outputs(net, [plain])
    assert data.misses == 12


def test_items_that_change_are_named() -> None:
    """An item that is drawn anew each time is found at its first return; one that changes later at a later check."""
    net, rng = net_of(), Random(0)

    class Drawn(Items):
        def __getitem__(self, index: int) -> Any:
            return Sentence([rng.randrange(20)], torch.ones(6), 1)

    data = CapturedDataset(Drawn([None] * 3), net)
    assert list(data)
    with pytest.raises(InputError, match="item 2 of the data set: expected the instance that it was"):
        data[2]

    late = CapturedDataset(Items(sentences(1)), net)
    late[0], late[0]
    late.dataset.items = sentences(1, seed=9)
    with pytest.raises(InputError, match="item 0 of the data set"):
        outputs(net, [[late[0]] for _ in range(2 * CHECK_EVERY)])


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_a_forward_that_draws_what_it_does_is_not_captured(draw: Any) -> None:
    """Stochastic depth, in training only: each epoch draws its own, as without the data set; evaluation is captured."""

    def forward(net: Any, ids: list[int]) -> Any:
        h = net.start
        for word in ids:
            if not net.training or draw() < 0.5:
                h = net.join(h, net.table.weight[word])
        return net.out(h)

    net, plain = bound(seeded(Base, forward), words(8)), words(20)
    data = CapturedDataset(plain, net)
    assert all(type(item) is Captured for item in data)
    net.model.train()
    of_epochs = []
    for _ in range(2):
        random.seed(0), np.random.seed(0)
        expected = gradients(net, plain, 3)
        assert list(data) == plain
        random.seed(0), np.random.seed(0)
        assert gradients(net, list(data), 3) == expected
        of_epochs.append(gradients(net, list(data), 3))
    assert of_epochs[0] == of_epochs[1] != expected


def test_any_item_is_checked_some_time() -> None:
    """In epochs of one order whose length divides the distance of checks too, not the same items for ever."""
    net, plain = net_of(), Items(sentences(10))
    data = CapturedDataset(plain, net)
    for _ in range(1 + 5 * CHECK_EVERY):
        for item in range(10):
            data[item]

    assert data.checked == 50
    assert all(asked > 1 for asked in plain.asked)


def test_numbers_that_became_operands_are_no_change() -> None:
    """A call with many numbers is recorded in another way after the eighth: the same results, so no error."""
    net = bound(seeded(Base, lambda net, x: net.out(net.start) * float(x)), list(range(3)))
    data = CapturedDataset(list(range(1, 30)), net)
    first = outputs(net, [list(data)])

    assert outputs(net, [list(data)]) == first
    assert data.checked == 1


def test_what_cannot_be_captured_is_given_as_it_is() -> None:
    """Instances of which forward returns objects stay plain, and so does what the limit leaves no room for."""

    def forward(net: Any, item: Any) -> Any:
        return (net.out(net.start), object()) if isinstance(item, dict) else chain(net, item)

    net = bound(seeded(Base, forward), [[1], {}])
    data = CapturedDataset([[1, 2], {}, [3]], net)
    assert [type(x) for x in data] == [type(x) for x in data] == [Captured, dict, Captured]
    assert data.plain == 1

    small = CapturedDataset(words(9), net, limit=net.capture([1]).nbytes)
    assert outputs(net, [list(small), list(small)]) == outputs(net, [words(9), words(9)])
    assert small.nbytes <= small.limit


def test_instances_that_somebody_reads_beside_stay_plain_where_forward_keeps_tensors_on_them() -> None:
    """A loss that is given the instance finds there what forward has left."""

    def forward(net: Any, item: dict[str, Any]) -> Any:
        item["h"] = net.out(net.table(torch.tensor(item["word"])))
        return item["h"]

    net = bound(seeded(Base, forward), [{"word": 1}, {"word": 2}])
    plain = [{"word": 3}, {"word": 4}]
    data = CapturedDataset(plain, net)
    assert [type(item) for item in data] == [Captured, Captured]
    data = CapturedDataset(plain, net)
    data.is_read_beside = True
    results = net(list(data))

    assert data.plain == 2
    assert [item["h"] for item in plain] == list(results)

    net.capture_each = None  # nothing is recorded in vain once it is known
    more = CapturedDataset([{"word": 5}], net)
    more.is_read_beside = True
    assert more[0] == {"word": 5}


def test_errors_name_the_item() -> None:
    """What forward raises comes with the number of its item, alone or among others."""
    net = bound(seeded(Base, chain), words(8))
    data = CapturedDataset([[1], [2, "x"], [3]], net)
    with pytest.raises(TypeError) as error:
        data.__getitems__([0, 1, 2])
    assert "item 1 of the data set" in error.value.__notes__


def saved(tmp_path: Path, count: int = 30) -> tuple[Any, list[Any], Path]:
    net, plain = net_of(), sentences(count)
    data = CapturedDataset(plain, net, file=tmp_path / "captured.safetensors")
    assert list(data)
    return net, plain, data.save()


def test_files_are_read_by_another_process_net(tmp_path: Path) -> None:
    """A net that has recorded nothing learns from a few items, asks for no other, and gives the same bits."""
    net, plain, file = saved(tmp_path)
    items = Items(plain)
    other = bound(net.model, sentences(40))
    data = CapturedDataset(items, other, file=file)

    assert sum(items.asked) < len(plain) / 2
    assert outputs(other, [list(data)]) == outputs(net, [plain])
    assert list(data) == net.capture_all(plain)
    assert data.save(tmp_path / "again.safetensors").read_bytes()
    assert list(CapturedDataset(plain, net, file=tmp_path / "again.safetensors")) == list(data)


def test_altered_files_are_refused(tmp_path: Path) -> None:
    """A byte that differs anywhere, or a file cut off anywhere, is an error or changes nothing."""
    net, plain, file = saved(tmp_path, 12)
    data, rng = file.read_bytes(), Random(0)
    expected, refused = list(CapturedDataset(plain, net, file=file)), 0
    for number in range(300):
        altered = bytearray(data)
        if number % 10:
            altered[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        else:
            del altered[rng.randrange(len(data)) :]
        file.write_bytes(bytes(altered))
        try:
            found = list(CapturedDataset(plain, net, file=file))
        except EdbcError:
            refused += 1
        else:
            assert found == expected

    assert refused > 290


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    """A file of another model, or in another mode, says what differs."""
    net, plain, file = saved(tmp_path)
    with pytest.raises(StaleError, match=r"captured\.safetensors: .*expected types"):
        CapturedDataset(words(8), bound(seeded(Base, chain), words(8)), file=file)
    net.model.train()
    with pytest.raises(StaleError, match="expected training 'training'"):
        CapturedDataset(plain, net, file=file)
    net.model.eval()
    with pytest.raises(InputError, match="expected items of a data set of 3, got"):
        CapturedDataset(plain[:3], net, file=file)


def test_a_place_for_no_file_is_told_at_once(tmp_path: Path) -> None:
    """A folder, a path in no folder, or a limit below nothing: an error before anything is captured."""
    net = net_of()
    for options, message in (
        ({"file": tmp_path}, "expected captured instances, got a folder"),
        ({"file": tmp_path / "none" / "x.safetensors"}, "expected to write captured instances there, got nothing"),
        ({"limit": -1}, "expected a limit of 0 bytes or more, got -1"),
    ):
        with pytest.raises(EdbcError, match=message):
            CapturedDataset(sentences(3), net, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected a map-style data set.*got list_iterator; put its items in a list"):
        CapturedDataset(iter(sentences(3)), net)
