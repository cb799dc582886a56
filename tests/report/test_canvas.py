"""Pictures in the page's colours, within the page and as files of their own."""

from __future__ import annotations

from xml.etree import ElementTree

from specframe.report.canvas import INK, SERIES, canvas


def drawn(*, page: bool) -> str:
    with canvas("small") as figure:
        figure.axes[0].plot([0, 1], [0, 1], color=SERIES[0], label="a < b & $c$")
        figure.axes[0].legend()
        return figure.svg('a "label"') if page else figure.document('a "label"')


def test_the_page_gets_its_own_variables() -> None:
    text = drawn(page=True)
    ElementTree.fromstring(text)
    assert "var(--c0)" in text and SERIES[0] not in text
    assert "<style>" not in text.replace('<style type="text/css">', "")


def test_a_file_is_light_and_follows_a_dark_scheme() -> None:
    text = drawn(page=False)
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == 'a "label"'
    assert "var(--" not in text and SERIES[0] not in text and INK not in text
    assert "@media (prefers-color-scheme: dark)" in text
    # The first line of the page's colours: light and dark.
    assert "stroke: #2f6f9f" in text
    assert '[style*="stroke: #2f6f9f"] { stroke: #7db4de !important }' in text
    assert "a < b & $c$" in "".join(root.itertext())
