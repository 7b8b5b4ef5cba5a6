from __future__ import annotations

import re

import numpy as np

import hifigemm as hg
from hifigemm.workshop.measuring.cases import scheme_options
from hifigemm.workshop.page import PRICES, TEMPLATE
from hifigemm.workshop.report import CASES

TEXT = TEMPLATE.read_text(encoding="utf-8")
CODES = re.findall(r"<dd><code>(.*)</code>(?:<br/>\$(\w+))?</dd>", TEXT)
"""What the page tells to write, each with the place of its price if it has one."""


def test_what_the_page_tells_to_write_runs():
    a = np.arange(6).reshape(2, 3)
    for code, price in CODES:
        dtype = (
            "int64" if 'result="int64"' in code else PRICES.get(price, ["float64"])[0]
        )
        names = {"hg": hg, "a": a.astype(dtype), "b": a.T.astype(dtype)}
        result = np.asarray(eval(code, names))
        np.testing.assert_array_equal(result.reshape(-1, 2, 2)[0], a @ a.T)


def test_each_price_is_that_of_the_code_before_it():
    prices = {price: code for code, price in CODES if price}
    assert prices.keys() == PRICES.keys()
    for price, (dtype, case) in PRICES.items():
        options = scheme_options(case)
        if options.pop("scheme", "auto") != "auto":
            raise AssertionError(f"{case} takes a scheme")
        names = {"hg": hg}
        called = re.fullmatch(r"hg\.matmul\(a, b(?:, (.*))?\)", prices[price])
        assert eval(f"dict({called[1] or ''})", names) == options
        assert case in CASES[dtype]
