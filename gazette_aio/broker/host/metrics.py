"""Counters of a broker, with the names that operators know."""

from __future__ import annotations

from gazette_aio.serving.calls import CallCounts


class BrokerMetrics(CallCounts):
    """Counters, each a plain number."""

    spool_commits = 0
    spool_commit_bytes = 0
    spool_rollbacks = 0
    spool_rollback_bytes = 0
    spool_completed = 0
    spool_persisted = 0
    store_put_bytes = 0
    store_list_items = 0
    store_health_checks = 0

    def snapshot(self) -> dict[str, object]:
        """Return all counters as a dictionary of plain values."""
        return {
            "gazette_journal_server_started_totals": dict(self.started),
            "gazette_journal_server_completed_totals": {
                f"{operation},{status}": count
                for (operation, status), count in sorted(self.completed.items())
            },
            "gazette_spool_commits_total": self.spool_commits,
            "gazette_spool_commit_bytes_total": self.spool_commit_bytes,
            "gazette_spool_rollbacks_total": self.spool_rollbacks,
            "gazette_spool_rollback_bytes_total": self.spool_rollback_bytes,
            "gazette_spool_completed_total": self.spool_completed,
            "gazette_spool_persisted_total": self.spool_persisted,
            "gazette_store_put_bytes_total": self.store_put_bytes,
            "gazette_store_list_items_count": self.store_list_items,
            "gazette_store_health_check_total": self.store_health_checks,
        }
