"""What pictures call the cases and families of `hifigemm bench`."""

from __future__ import annotations

_WHOLE = {
    "native": "native product",
    "auto": "matmul of hifigemm",
    "auto@correct": "correctly rounded",
    "auto@fp64": "matmul of hifigemm, FP64 accuracy promised",
    "ozaki2:fast@fp64": "as accurate as float64, promised",
    "cublas-emulated": "cuBLAS, emulated with 55 bits",
    "cublas-emulated-dynamic": "cuBLAS, emulated, bits by the data",
}
_MODES = {"dp": "DP mode", "sp": "SP mode", "correct": "correct mode"}


def case_name(case: str) -> str:
    """A case in words: "ozaki2:14" is "14 moduli"; the case itself where there are no
    words for it.
    """
    if case in _WHOLE:
        return _WHOLE[case]
    scheme, _, accuracy = case.partition("@")
    name, *details = scheme.split(":")
    if accuracy:
        return f"{case_name(scheme)}, error at most {accuracy}"
    match name, details:
        case "ozaki2", [count]:
            return f"{count} moduli"
        case "ozaki1", [count]:
            return f"{count} INT8 slices"
        case "ozaki1", [product, mode] if mode in _MODES:
            return f"{_MODES[mode]}, {product.upper()} slices"
        case "corrected", [product, *rest]:
            return f"corrected {product.upper()} words" + (
                ", summed in the tensor core" if rest else ""
            )
        case "multiword", [product, _, count]:
            kind = (
                "FP32 words (TF64)" if product == "fp32" else f"{product.upper()} words"
            )
            return f"{count} {'product' if count == '1' else 'products'} of {kind}"
    return case


def family_name(family: str) -> str:
    """A family of operands in words."""
    known = {
        "uniform": "entries uniform on (-1, 1)",
        "uniform01": "entries uniform on (0, 1)",
    }
    return (
        f"φ = {family[3:]}" if family.startswith("phi") else known.get(family, family)
    )
