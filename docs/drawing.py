"""An SVG written line by line; docs/make_figures.py and docs/timeline.py draw with it."""

from __future__ import annotations

from xml.sax.saxutils import escape

GREY, INK, STRONG = "#777777", "#222222", "#c00000"


class Drawing:
    """An SVG of whole-numbered coordinates on a white ground: the same input gives the same bytes. A name and a
    description are what a screen reader says."""

    def __init__(self, width: int, height: int, name: str = "", description: str = "") -> None:
        spoken = ' role="img" aria-labelledby="name description"' if name else ""
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif"{spoken}>'
        ]
        if name:
            self.parts.append(f'<title id="name">{escape(name)}</title>')
            self.parts.append(f'<desc id="description">{escape(description)}</desc>')
        self.parts.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')

    def box(self, x: int, y: int, width: int, height: int, fill: str = "none", edge: str = GREY, line: int = 1) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" '
            f'stroke="{edge}" stroke-width="{line}"/>'
        )

    def text(self, x: int, y: int, words: str, size: int = 12, anchor: str = "start", fill: str = INK) -> None:
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'
        )

    def title(self, x: int, y: int, words: str) -> None:
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="13" font-weight="bold" fill="{INK}">{escape(words)}</text>'
        )

    def cell(self, x: int, y: int, width: int, height: int, fill: str, words: str, size: int = 11) -> None:
        self.box(x, y, width, height, fill)
        self.text(x + width // 2, y + height // 2 + 4, words, size, "middle")

    def line(self, x1: int, y1: int, x2: int, y2: int, colour: str = STRONG, width: int = 2) -> None:
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="{width}"/>'
        )

    def distance(self, x1: int, y1: int, x2: int, y2: int) -> None:
        """A line with a bar at each end."""
        dx, dy = (0, 4) if y1 == y2 else (4, 0)
        bars = [(x - dx, y - dy, x + dx, y + dy) for x, y in ((x1, y1), (x2, y2))]
        for a, b, c, d in [(x1, y1, x2, y2), *bars]:
            self.line(a, b, c, d)

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])
