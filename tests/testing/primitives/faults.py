"""What tests of primitives share: the faults among findings."""

from __future__ import annotations


def at_fault(found):
    return {
        finding.name: finding.fault
        for finding in found
        if finding.fault and finding.used
    }
