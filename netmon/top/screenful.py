# SPDX-License-Identifier: Apache-2.0
"""A body above a last line, exactly as high as the screen."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment


@dataclass(frozen=True)
class Screenful:
    """Crops or pads the body so that `footer` stands on line `height`."""

    body: RenderableType
    footer: RenderableType
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Segments of exactly `height` lines, without a newline after the last."""
        options = options.update(height=None)
        footer = console.render_lines(self.footer, options)[:1]
        room = max(self.height - len(footer), 0)
        body = Segment.set_shape(console.render_lines(self.body, options)[:room], options.max_width, room)
        for index, line in enumerate([*body, *footer]):
            if index:
                yield Segment.line()
            yield from line
