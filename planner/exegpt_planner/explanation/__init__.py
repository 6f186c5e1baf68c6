"""Why a plan is what it is, as one record: what `exegpt explain` writes as text, JSON and a page.

Nothing here knows a strategy's formulas: everything is asked of the planner and the simulator, with a changed question.
"""
