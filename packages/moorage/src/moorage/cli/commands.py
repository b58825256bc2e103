"""The table of commands.

A command's module is imported when it is called, and has its own click command. This module imports no other
module of Moorage: `moor --help` needs only the table.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click

# (section, name, module:attribute, help in one line)
COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    ("Runs", "run", "moorage.cli.run:run", "Run a command as a Job, with limits"),
    ("Runs", "rerun", "moorage.cli.run:rerun", "Run the command of a run again, with other options"),
    ("Runs", "jobs", "moorage.cli.joblist:jobs", "List runs and their states"),
    ("Runs", "show", "moorage.cli.jobshow:show", "Show the details of a run"),
    ("Runs", "logs", "moorage.cli.logs:logs", "Print or follow the logs of a run, all its pods in one view"),
    ("Runs", "wait", "moorage.cli.wait:wait", "Wait until runs or maps have ended, or run"),
    ("Runs", "exec", "moorage.cli.exec:exec_", "Run a command or a shell in a run"),
    (
        "Runs",
        "port-forward",
        "moorage.cli.portforward:port_forward",
        "Forward local ports to a run or a workspace",
    ),
    ("Runs", "rightsize", "moorage.cli.rightsize:rightsize", "Show which runs ask for too much or too little"),
    (
        "Runs",
        "explain",
        "moorage.cli.explain:explain",
        "Explain why a run waits, or how it ended, and how to fix it",
    ),
    ("Runs", "suspend", "moorage.cli.suspend:suspend", "Suspend runs: they hold nothing until they are resumed"),
    ("Runs", "resume", "moorage.cli.suspend:resume", "Resume suspended runs from their checkpoints"),
    ("Runs", "cancel", "moorage.cli.cancel:cancel", "Stop runs for good"),
    ("Runs", "docker", "moorage.cli.docker:docker", "Run Docker's own commands on the cluster"),
    ("Maps", "map", "moorage.cli.map:map", "Run a command or a function once for each of many items"),
    ("Maps", "plan", "moorage.cli.plan:plan", "Estimate the needs of a map: nodes, time, money"),
    ("Maps", "notify", "moorage.cli.notify:notify", "Send a test notification"),
    ("Workflows", "workflow", "moorage_workflows.cli.workflow:workflow", "Run workflows in Argo's format"),
    ("Workflows", "cron", "moorage_workflows.cli.cron:cron", "Run workflows on a schedule"),
    ("GPUs", "gpus", "moorage.cli.gpus:gpus", "Show every GPU: free, or its user"),
    ("GPUs", "top", "moorage.cli.gpus:top", "Show GPU-hours by user, namespace, run, workflow, type or GPU"),
    ("GPUs", "idle", "moorage.cli.idle:idle", "List idle work that holds GPUs, and the next step"),
    ("GPUs", "snooze", "moorage.cli.idle:snooze", "Put off the suspension of idle work"),
    ("GPUs", "machines", "moorage.cli.machines:machines", "List types of machines: size, free, price, how to ask"),
    ("GPUs", "reserve", "moorage.cli.reserve:reserve", "Reserve machines for a period"),
    ("GPUs", "cost", "moorage.cli.cost:cost", "Show the cost of nodes, and each user's share"),
    ("GPUs", "budget", "moorage.cli.budget:budget", "Show budgets, and their use"),
    ("GPUs", "simulate", "moorage.cli.simulate:simulate", "Try packing policies on a trace of pods"),
    (
        "Workspaces",
        "workspace",
        "moorage.cli.workspace:workspace",
        "JupyterLab, code-server and others in a browser",
    ),
    ("Storage", "volume", "moorage.cli.volume:volume", "Create, list and delete volumes"),
    ("Storage", "dataset", "moorage.cli.dataset:dataset", "Fill volumes once, read them everywhere"),
    ("Storage", "secret", "moorage.cli.secret:secret", "Create, list and delete secrets: keys, tokens, passwords"),
    ("Nodes", "nodes", "moorage.cli.nodes:nodes", "List nodes: state, GPUs, CPU, memory, runs"),
    ("Nodes", "drain", "moorage.cli.drain:drain", "Evict all pods of a node; runs start again elsewhere"),
    ("Nodes", "cordon", "moorage.cli.drain:cordon", "Mark a node as unschedulable"),
    ("Nodes", "uncordon", "moorage.cli.drain:uncordon", "Mark a node as schedulable"),
    ("Nodes", "doctor", "moorage.cli.doctor:doctor", "Check an installation; explain why a node stays"),
    ("People", "login", "moorage.cli.login:login", "Log in to a Moorage server"),
    ("People", "logout", "moorage.cli.login:logout", "Log out; revoke the session and its tokens"),
    ("People", "whoami", "moorage.cli.login:whoami", "Show the account you are logged in with"),
    ("People", "token", "moorage.cli.login:token", "Print a token for the cluster, as kubectl's plugins do"),
    ("People", "kubeconfig", "moorage.cli.login:kubeconfig", "Write a kubeconfig for your account"),
    ("People", "user", "moorage.cli.users:user", "Create, list, disable and delete user accounts"),
    ("People", "tenant", "moorage.cli.tenants:tenant", "Create, list, change and delete tenants"),
    ("People", "audit", "moorage.cli.users:audit", "Show the audit log"),
    ("Manifests", "lint", "moorage.cli.lint:lint", "Check manifests against the guardrails"),
    ("This machine", "demo", "moorage.cli.demo.command:demo", "Show the platform in 3 minutes, on this machine"),
    ("This machine", "up", "moorage.cli.up:up", "Start the local cluster and Moorage's services"),
    ("This machine", "down", "moorage.cli.up:down", "Stop the local cluster"),
    ("This machine", "status", "moorage.cli.status:status", "Show whether the local cluster runs, and where"),
    ("This machine", "backup", "moorage.cli.backup:backup", "Back up the data outside the Kubernetes API"),
    ("This machine", "restore", "moorage.cli.restore:restore", "Restore a backup, or files of the local cluster"),
    ("On a cluster", "install", "moorage.cli.install:install", "Install Moorage on a cluster, or change values"),
    ("On a cluster", "upgrade", "moorage.cli.install:upgrade", "Upgrade an installation to this version"),
    ("On a cluster", "uninstall", "moorage.cli.uninstall:uninstall", "Remove Moorage from a cluster"),
    ("On a cluster", "manifests", "moorage.cli.manifests:manifests", "Print the manifests that install Moorage"),
    ("On a cluster", "operator", "moorage.cli.service_commands:operator", "Run the operator"),
    ("On a cluster", "webhook", "moorage.cli.service_commands:webhook", "Run the admission webhook"),
    ("On a cluster", "extender", "moorage.cli.service_commands:extender", "Run the scheduler extender"),
    ("On a cluster", "server", "moorage.cli.service_commands:server", "Run the REST API and the web page"),
    (
        "The command line",
        "completion",
        "moorage.cli.completion:completion",
        "Print a completion script for your shell",
    ),
)

TYPED = "moorage.typed"  # in the meta of click's context: the words after the command, as they were typed

# other words that people type, from Docker, kubectl and the shell
ALIASES: dict[str, str] = {
    "ls": "jobs",
    "ps": "jobs",
    "rm": "cancel",
    "stop": "cancel",
    "kill": "cancel",
    "describe": "show",
    "ws": "workspace",
    "vol": "volume",
    "ds": "dataset",
}

# Words of other tools for commands with another name here. They are not commands: nothing is done by mistake.
MEANT: dict[str, str] = {
    "delete": "moor cancel --delete NAME",
    "remove": "moor cancel --delete NAME",
    "retry": "moor rerun NAME",
    "restart": "moor rerun NAME",
    "submit": "moor run -- COMMAND",
    "create": "moor run -- COMMAND",
    "start": "moor run -- COMMAND",
    "sbatch": "moor run -- COMMAND",
    "srun": "moor run --follow -- COMMAND",
    "squeue": "moor jobs",
    "scancel": "moor cancel NAME",
    "sinfo": "moor nodes",
    "queue": "moor jobs",
    "history": "moor jobs",
    "info": "moor show NAME",
    "events": "moor show NAME",
    "why": "moor explain NAME",
    "shell": "moor exec NAME",
    "ssh": "moor exec NAME",
    "attach": "moor logs -f NAME",
    "tail": "moor logs -f NAME",
    "forward": "moor port-forward NAME PORT",
    "cp": "moor volume cp SOURCE DESTINATION",
    "notebook": "moor workspace create NAME",
    "jupyter": "moor workspace create NAME",
    "results": "moor map results NAME",
    "config": "moor kubeconfig",
    "teams": "moor whoami",
    "namespaces": "moor whoami",
    "version": "moor --version",
}


def find_command(word: str) -> tuple[str, str] | None:
    """The name and the import target of a command, by its name or an alias; None if unknown."""
    word = ALIASES.get(word, word)
    return next(((name, target) for _, name, target, _ in COMMANDS if name == word), None)


def load(target: str) -> click.Command:
    """Import the click command behind "module:attribute"."""
    from importlib import import_module

    module, _, attribute = target.partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    return command
