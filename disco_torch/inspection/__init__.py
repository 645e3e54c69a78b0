"""Inspection: what a rule reads, how far it looks, what its predictions mean, in words, and a page that shows it."""

from disco_torch.inspection.case import RuleCase, make_case
from disco_torch.inspection.counterfactuals import (
    COUNTERFACTUALS,
    Counterfactual,
    Reading,
    Sensitivities,
    measure_counterfactuals,
    measure_exchange,
    measure_sensitivities,
)
from disco_torch.inspection.findings import Inspection, RuleFindings, inspect_subject, look_into
from disco_torch.inspection.horizon import Reach, effective_horizon, measure_reach
from disco_torch.inspection.inspecting import inspect_rule
from disco_torch.inspection.lifetime import Age, measure_lifetime
from disco_torch.inspection.page import write_page
from disco_torch.inspection.peers import Peer, peers_of
from disco_torch.inspection.probes import Approach, Future, Probe, make_futures, measure_approach, measure_probes
from disco_torch.inspection.subject import Subject, load_subject, train_subject
from disco_torch.inspection.traces import Trace, trace_of
from disco_torch.inspection.words import InWords, Selected, candidate_terms, in_words

__all__ = [
    "COUNTERFACTUALS",
    "Age",
    "Approach",
    "Counterfactual",
    "Future",
    "InWords",
    "Inspection",
    "Peer",
    "Probe",
    "Reach",
    "Reading",
    "RuleCase",
    "RuleFindings",
    "Selected",
    "Sensitivities",
    "Subject",
    "Trace",
    "candidate_terms",
    "effective_horizon",
    "in_words",
    "inspect_rule",
    "inspect_subject",
    "load_subject",
    "look_into",
    "make_case",
    "make_futures",
    "measure_approach",
    "measure_counterfactuals",
    "measure_exchange",
    "measure_lifetime",
    "measure_probes",
    "measure_reach",
    "measure_sensitivities",
    "peers_of",
    "trace_of",
    "train_subject",
    "write_page",
]
