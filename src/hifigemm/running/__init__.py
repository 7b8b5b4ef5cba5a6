"""From a call to its result: request, plan, executable, report.

Nothing here knows of gradients or of other programs' products.
"""
