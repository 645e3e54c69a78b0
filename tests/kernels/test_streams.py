"""What is made beside other work is made first and in order; on a GPU see `test_gpu_kernels.py`."""

from disco_torch.kernels import Aside, beside, one_ahead


def test_all_are_made_before_the_first_is_given() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    results = beside(make, 3)
    assert made == []
    assert next(results) == 0 and made == [0, 1, 2]
    assert list(results) == [1, 2]


def test_without_a_graph_nothing_is_made_ahead() -> None:
    made: list[int] = []

    def make(item: int) -> int:
        made.append(item)
        return item * 10

    results = one_ahead(make, [3, 2, 1])
    assert next(results) == 30 and made == [3]
    assert list(results) == [20, 10] and made == [3, 2, 1]


def test_without_a_graph_nothing_is_done_aside() -> None:
    aside, done = Aside(), list[int]()
    assert aside(lambda x: done.append(x) or x + 1, 3) == 4 and done == [3]
    aside.wait()
