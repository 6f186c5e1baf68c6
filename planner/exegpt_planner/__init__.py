"""Pure planning: from a profile, a workload and one latency bound to the schedule with the most throughput."""
