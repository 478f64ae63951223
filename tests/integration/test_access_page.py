"""The page of the access matrix is what the tests prove."""

from access_page import PAGE, page


def test_page_is_written_from_the_matrix() -> None:
    """Otherwise `make access-matrix` has to be called."""
    assert PAGE.read_text() == page()
