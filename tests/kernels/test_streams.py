"""What is made beside other work is made first and in order; on a GPU see `test_gpu_kernels.py`."""

from disco_torch.kernels import beside


def test_all_are_made_before_the_first_is_given() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    results = beside(make, 3)
    assert made == []
    assert next(results) == 0 and made == [0, 1, 2]
    assert list(results) == [1, 2]
