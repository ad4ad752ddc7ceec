"""Values and decisions without I/O: jobs, outcomes, schedules, workflows."""
