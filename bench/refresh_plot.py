# SPDX-License-Identifier: BSD-2-Clause
"""The plot of docs/refresh.md as SVG: small panels of latency against the place in the receive ring."""
import html
import math

WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y = 236, 150, 56, 64, 20, 46
LAST = 63  # replies after the one that crossed
INK, FAINT, COLD, HOT = '#24292f', '#d0d7de', '#4878a8', '#c0392b'


def text(x, y, words, size=11, anchor='start', fill=INK, extra=''):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{extra}>{html.escape(words)}</text>'


class Scale:
    """Logarithmic, the same for all panels."""

    def __init__(self, values):
        self.low = math.floor(math.log10(max(min(values), 1)) * 2) / 2
        self.high = math.ceil(math.log10(max(values)) * 2) / 2

    def y(self, top, us):
        share = (math.log10(max(us, 1)) - self.low) / (self.high - self.low)
        return top + HEIGHT * (1 - min(max(share, 0), 1))

    def ticks(self):
        return [10 ** e * m for e in range(-1, 8) for m in (1, 3) if self.low - 1e-9 <= math.log10(10 ** e * m) <= self.high + 1e-9]


def panel(out, x, y, title, data, scale, labels):
    out.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="{FAINT}"/>')
    for tick in scale.ticks():
        ty = scale.y(y, tick)
        out.append(f'<line x1="{x}" y1="{ty:.1f}" x2="{x + WIDTH}" y2="{ty:.1f}" stroke="{FAINT}" stroke-width="0.5"/>')
        if labels:
            out.append(text(x - 6, ty + 4, f'{tick / 1000:g} ms' if tick >= 1000 else f'{tick:g} us', 10, 'end'))
    out.append(text(x, y - 7, title, 10.5))

    def px(since):
        return x + 8 + (WIDTH - 16) * since / LAST
    points = sorted((since, *v) for since, v in data.items() if since <= LAST)
    line = ' '.join(f'{px(s):.1f},{scale.y(y, p50):.1f}' for s, p50, _ in points if s)
    out.append(f'<polyline points="{line}" fill="none" stroke="{COLD}" stroke-width="1.5"/>')
    line = ' '.join(f'{px(s):.1f},{scale.y(y, p90):.1f}' for s, _, p90 in points if s)
    out.append(f'<polyline points="{line}" fill="none" stroke="{COLD}" stroke-width="0.8" stroke-dasharray="3 2"/>')
    for since, p50, p90 in points:
        if since == 0:
            out.append(f'<line x1="{px(0)}" y1="{scale.y(y, p50):.1f}" x2="{px(0)}" y2="{scale.y(y, p90):.1f}" stroke="{HOT}"/>')
            out.append(f'<circle cx="{px(0)}" cy="{scale.y(y, p50):.1f}" r="4" fill="{HOT}"/>')


def bars(out, y, width, large):
    """The large value: a bar to p50, a line to p90."""
    out.append(text(LEFT, y, 'Latency of GETs of 4 MiB (four rings): bar to p50, line to p90', 12))
    room, most = width - LEFT - 330, max(p90 for _, p90 in large.values())
    for i, (name, (p50, p90)) in enumerate(large.items()):
        by = y + 12 + i * 19
        out.append(text(LEFT + 250, by + 11, name, 10.5, 'end'))
        out.append(f'<rect x="{LEFT + 258}" y="{by}" width="{room * p50 / most:.1f}" height="14" fill="{COLD}"/>')
        out.append(f'<line x1="{LEFT + 258}" y1="{by + 7}" x2="{LEFT + 258 + room * p90 / most:.1f}" y2="{by + 7}" stroke="{INK}"/>')
        out.append(text(LEFT + 264 + room * p90 / most, by + 11, f'{p50 / 1000:.2f} ms', 10.5))


def render(cases, loads, data, large):
    """data: {(case, load): {replies since the crossing: (p50, p90)}}; large: {case: (p50, p90)}"""
    scale = Scale([v for d in data.values() for since, pair in d.items() if since <= LAST for v in pair])
    columns = len(cases) // 2
    width = LEFT + columns * (WIDTH + GAP_X) + 10
    rows = 2 * len(loads)
    bottom = TOP + rows * (HEIGHT + GAP_Y) + 20
    height = bottom + 40 + 19 * len(large)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>',
           text(LEFT, 20, 'Latency of GETs of 16 KiB by their place in the receive ring of 1 MiB', 15),
           text(LEFT, 38, 'red: the reply that crosses the end and waits for RegisterXferMemory (dot p50, bar to p90); '
                          'blue: the replies after it (p50, dashed p90)', 11)]
    for r, load in enumerate(loads):
        for i, case in enumerate(cases):
            row, column = 2 * r + i // columns, i % columns
            x, y = LEFT + column * (WIDTH + GAP_X), TOP + row * (HEIGHT + GAP_Y) + 10
            words = f'{load[0]} outstanding' + (f', {load[1]} us of work' if load[1] else '')
            panel(out, x, y, case, data[case, load], scale, column == 0)
            if i == 0:
                out.append(text(14, y + HEIGHT, words, 11, extra=f' transform="rotate(-90 14 {y + HEIGHT})"'))
    bars(out, bottom + 16, width, large)
    out.append(text(LEFT + WIDTH / 2, bottom - 12, 'replies since the ring began anew, 0 to 63', 11, 'middle'))
    return '\n'.join(out) + '\n</svg>\n'
