"""Reports: training runs and discoveries on one page."""

from disco_torch.reports.reporting import Report, make_report, read_runs
from disco_torch.reports.runs import DiscoveryRun, ReportedRun, TrainingRun
from disco_torch.reports.scores import GroupScores, group_scores, improvements

__all__ = [
    "DiscoveryRun",
    "GroupScores",
    "Report",
    "ReportedRun",
    "TrainingRun",
    "group_scores",
    "improvements",
    "make_report",
    "read_runs",
]
