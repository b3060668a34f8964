# SPDX-License-Identifier: BSD-2-Clause
"""Horizontal bars as SVG, without dependencies: groups of bars, each of one or more segments, with whiskers and a line to compare with."""
import math
from xml.sax.saxutils import escape

INK, FAINT, PAPER = '#24292f', '#d0d7de', '#ffffff'
COLOURS = ('#0969da', '#8c959f', '#1a7f37', '#bf8700', '#8250df', '#cf222e')
LEFT, RIGHT, PLOT, BAR, GAP = 230, 80, 470, 13, 9


def text(x, y, words, size=11, anchor='start', weight='normal'):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}">'
            f'{escape(words)}</text>')


def ticks(top):
    """About five round numbers from 0 to top."""
    step = 10 ** math.floor(math.log10(top / 4))
    step *= next((m for m in (1, 2, 5) if top / (step * m) <= 5.5), 10)
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def decades(low, high):
    return [m * 10.0 ** e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 3)
            if low <= m * 10.0 ** e <= high]


class Scale:
    def __init__(self, values, log):
        self.log, self.top = log, max(values) * 1.02
        self.low = 10 ** math.floor(math.log10(min(v for v in values if v > 0))) if log else 0

    def x(self, v):
        if self.log:
            v = max(v, self.low)
            return PLOT * math.log10(v / self.low) / max(math.log10(self.top / self.low), 1e-9)
        return PLOT * v / self.top

    def ticks(self):
        return decades(self.low, self.top) if self.log else ticks(self.top)


def bars(title, unit, groups, names, log=False, line=None):
    """groups: [(label, [bar])], bar: {'colour': index into names, or one each segment, 'parts': [values], 'low', 'high'}."""
    groups = [(label, [b for b in some if b]) for label, some in groups]
    groups = [g for g in groups if g[1]]
    every = [b for _, some in groups for b in some]
    values = [v for b in every for v in (sum(b['parts']), b.get('high') or 0)] + ([line] if line else [])
    if not every or max(values) <= 0:
        return None
    scale = Scale(values, log)
    top, y = 64, 64
    out = []
    for label, some in groups:
        middle = y + len(some) * BAR / 2 + 4
        out.append(text(LEFT - 8, middle, label, 11, 'end'))
        for b in some:
            out += bar(b, y, scale)
            y += BAR
        y += GAP
    height = y + 24
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + PLOT + RIGHT} {height}" width="{LEFT + PLOT + RIGHT}" '
            f'height="{height}" font-family="sans-serif"><rect width="100%" height="100%" fill="{PAPER}"/>', text(12, 20, title, 14, weight='bold')]
    head += legend(names)
    for t in scale.ticks():
        x = LEFT + scale.x(t)
        head.append(f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{y}" stroke="{FAINT}"/>')
        head.append(text(x, y + 14, f'{t:g}', 10, 'middle'))
    head.append(text(LEFT + PLOT + RIGHT - 6, y + 14, unit, 10, 'end'))
    if line:
        x = LEFT + scale.x(line)
        out.append(f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{y}" stroke="{INK}" stroke-dasharray="4 3"/>')
    return '\n'.join(head + out) + '\n</svg>\n'


def bar(b, y, scale):
    out, at, parts = [], 0, b['parts']
    colours = b['colour'] if isinstance(b['colour'], (list, tuple)) else [b['colour']] * len(parts)
    for value, colour in zip(parts, colours):
        x, end = scale.x(at) if at else 0, scale.x(at + value)
        out.append(f'<rect x="{LEFT + x:.1f}" y="{y}" width="{max(end - x, 0):.1f}" height="{BAR - 2}" fill="{COLOURS[colour % len(COLOURS)]}"/>')
        at += value
    end = at
    if b.get('high'):
        x1, x2, m = LEFT + scale.x(b['low']), LEFT + scale.x(b['high']), y + (BAR - 2) / 2
        out.append(f'<line x1="{x1:.1f}" y1="{m}" x2="{x2:.1f}" y2="{m}" stroke="{INK}"/>')
        end = max(end, b['high'])
    out.append(text(LEFT + scale.x(end) + 4, y + BAR - 3, f'{at:.3g}' if at < 1000 else f'{at:.0f}', 10))
    return out


def legend(names):
    out, x = [], 12
    for i, name in enumerate(names):
        out.append(f'<rect x="{x}" y="31" width="11" height="11" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(text(x + 16, 41, name))
        x += 30 + 6.5 * len(name)
    return out
