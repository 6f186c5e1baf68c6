"""An explanation as one HTML page that needs nothing else: no script, no network, plots as SVG inside it."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from exegpt_cli.page.contents import page_of
from exegpt_cli.page.drawing import Bars, Curve, bars, curve
from exegpt_planner.explanation.record import Explanation, NoPlan


def page(found: Explanation | NoPlan) -> str:
    """The page as text."""
    loader = PackageLoader("exegpt_cli.page", ".")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, _, _ = loader.get_source(environment, "page.css")
    template = environment.get_template("page.html")
    return template.render(page=page_of(found), style=Markup(style), drawn=_drawn)


def _drawn(plot: Curve | Bars) -> Markup:
    return Markup(curve(plot) if isinstance(plot, Curve) else bars(plot))
