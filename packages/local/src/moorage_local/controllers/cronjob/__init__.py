"""Makes Jobs at the times that CronJobs name.

https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/
"""
