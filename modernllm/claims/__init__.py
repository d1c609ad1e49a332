"""The referee: from the runs of a claim's arms to a verdict that says where it holds.

What a flow hands over, and gets back:

    rows     [Row(cell, arm, lr, seed, loss, initial_loss, outcome, ...)]    table.py; one finished run each
    plan     {Key(cell, arm, lr, seed)}                                      table.py; `census(plan, rows)`: all there?
    table    Table(rows)                                                     refuses what must not be compared
    rule     Superiority(margin=0.02) and the like                           rules.py; one class a kind
    cells    [Cell(name, runs, main, scope, contrasts)]                      analysis.py
    contrast excess("...", BestLoss(), variant="pre", reference="post")      analysis.py, measures.py
    assess(table, rule=rule, cells=cells, tuning_seeds=[0, 1], evaluation_seeds=[2, 3, 4, 5, 6, 7]) -> [CellFindings]
    conclude(claim=..., statement=..., cells=..., controls=..., facts=...) -> Verdict    verdict.py

A *cell* of the table is a set of conditions that its arms share (initialisation, position, depth, data). Arms are
names; what they are made of is no business of the statistics. A run is one (cell, arm, lr, seed). Tuning seeds choose
learning rates and do nothing else; evaluation seeds are judged. A run that did not learn counts with its capped loss
(stability.py), and a run that is missing is an error, never a smaller n.

Pure functions of numbers: no torch, no files, no clock. Arrays are numpy float64, seeds on the last axis.
"""
