"""What runs beside the jobs: recovery, schedules, retention."""
