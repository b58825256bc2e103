"""Creates Jobs on the schedules of CronJobs.

https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/
"""
