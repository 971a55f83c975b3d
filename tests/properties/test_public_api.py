"""The public API: what `palaestra` and its packages export. A change here is a change for users."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import palaestra

API = {
    "palaestra": (
        "Engine EvaluateSettings GRPO GRPOConfig LMActorNetwork LMCriticNetwork LessonEnv MLPActorNetwork "
        "MLPCriticNetwork PPO PPOConfig PretrainSettings REINFORCE REINFORCEConfig RLOO RLOOConfig ResearchSettings RestEM RestEMConfig "
        "RewardModel RewardSettings Task TeachSettings Teacher TokenEnv TokenVectorEnv TrainSettings TurnEnv TurnVectorEnv __version__ "
        "check compare evaluate load_policy load_ppo_agent load_reward_model make_task make_teacher pretrain rescore resume "
        "run_episode run_research show teach train train_agent train_reward write_report"
    ),
    "palaestra.envs.lesson": "LessonEnv Round StudentState ValidationAttempt",
    "palaestra.envs.token": "CoTEnv CoTVectorEnv Prompt RLHFEnv RLHFVectorEnv Response TokenEnv TokenVectorEnv",
    "palaestra.envs.turn": (
        "AssistantSpace Conversation Reply StopReason ToolEnv TurnEnv TurnStopReason TurnVectorEnv"
    ),
    "palaestra.envs.wrappers": "PlainTokenVectorEnv SlotVectorEnv",
    "palaestra.integrations.autoresearch": "AutoresearchTask load_autoresearch",
    "palaestra.integrations.harbor": "HarborJudge HarborTask load_harbor",
    "palaestra.integrations.mlgym": "MLGymJudge MLGymTask load_mlgym mlgym_names",
    "palaestra.integrations.torchrl": (
        "ConditionalSkip IsolateCodeBlock MLGymEnv MLGymPool MLGymRewardAssignment MLGymWrapper "
        "MessageToHistory ReadState ResetModule StateToMessage TaskSampler TemplateTransform make_mlgym"
    ),
    "palaestra.report": "write_comparison write_figures write_leaderboard write_report",
    "palaestra.research.agents": "AGENTS Agent AgentContext Halt absolute_path make_agent resolve_agent",
    "palaestra.research.workspace.commands": (
        "BrokenCommandError COMMANDS Command CommandError CommandParameter CommandResult Hooks Memory Session "
        "command documentation load_commands tool_schemas"
    ),
    "palaestra.sandbox": (
        "LimitReport Limits SANDBOXES SHELL_LIMITS Sandbox SandboxCommand SandboxResult Shell ShellResult "
        "Status make_sandbox report_limits"
    ),
    "palaestra.view": "make_app",
}
"""The exported names by package."""

DOCUMENTED = {
    "palaestra.core.errors": "TaskError",
    "palaestra.core.records": (
        "Attempt Completion Decision Event Example Failure FailureCause ImagePart Lesson Message Problem "
        "Report Score Split"
    ),
    "palaestra.core.seeding": "Seeds",
    "palaestra.core.settings": "setting",
    "palaestra.core.statistics": "mean_interval measure_gain report_on",
    "palaestra.engines.base": "BaseEngine ENGINES",
    "palaestra.engines.budget": "Budget",
    "palaestra.engines.factory": "open_cached",
    "palaestra.envs.lesson.state": "NullJournal StudentState",
    "palaestra.envs.turn.foreign": "random_action_examples",
    "palaestra.envs.turn.games": "calculator_examples",
    "palaestra.envs.turn.text": "TextEnv",
    "palaestra.integrations.inspect_ai.exported": "task_of",
    "palaestra.integrations.trl": (
        "TaskReward make_dataset make_environment_class make_plain_tokenizer score_episodes"
    ),
    "palaestra.models": "registry",
    "palaestra.models.registry": "cache_folder locate",
    "palaestra.recipes.teach.recipe": "TeachResult",
    "palaestra.recipes.train.reward_model": "train_reward",
    "palaestra.research.tasks.task": "SubmissionError",
    "palaestra.research.workspace.parsing": "Action FormatError PARSERS",
    "palaestra.rewards.model": "load_reward_model",
    "palaestra.rl.algorithms": "ALGORITHMS Algorithm AlgorithmConfig",
    "palaestra.rl.optimizers": "Optimizer training_mode",
    "palaestra.rl.rollouts": "select_all",
    "palaestra.runs.cache": "Cache",
    "palaestra.runs.files": "to_json write_json write_text",
    "palaestra.runs.provenance": "LedgerEntry",
    "palaestra.runs.run": "Run new_folder",
    "palaestra.students.registry": "make_student",
    "palaestra.students.supervised": "Supervision fine_tune supervision_for",
    "palaestra.tasks.base": "TASKS Task TaskHooks get_split",
    "palaestra.tasks.vision.image_generators.base": "IMAGE_GENERATORS",
    "palaestra.teachers.base": "TEACHERS TaskWriter Teacher Writer write_from_task",
    "palaestra.teachers.model_writer": "ModelWriter",
    "palaestra.teachers.prompts": "TeacherPrompts",
    "palaestra.teachers.quality.base": "Context inspect make_checks",
}
"""The public names of modules that are not packages, because the documentation or an example imports them."""

ROOT = Path(__file__).parents[2]
IMPORT = re.compile(r"^\s*from (palaestra[\w.]*) import (\([^)]*\)|[^#\n]*)", re.MULTILINE)


def defined_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@pytest.mark.parametrize("package", API)
def test_a_package_exports_its_listed_names(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == API[package].split()
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_package_with_exports_is_listed() -> None:
    root = Path(palaestra.__file__).parent
    exporting = set()
    for path in root.rglob("__init__.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any("__all__" in defined_names(node) for node in tree.body):
            exporting.add(".".join(["palaestra", *path.parent.relative_to(root).parts]))
    assert exporting == set(API)


def test_what_the_documentation_imports_is_listed() -> None:
    imported: dict[str, set[str]] = {}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    for page in pages:
        for module, names in IMPORT.findall(page.read_text(encoding="utf-8")):
            imported.setdefault(module, set()).update(re.findall(r"(\w+)(?: as \w+)?", names))
    deep = {module: " ".join(sorted(names)) for module, names in imported.items() if module not in API}
    assert deep == DOCUMENTED
    assert all(names <= set(API[module].split()) for module, names in imported.items() if module in API)


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_documented_name_is_defined(module: str) -> None:
    path = Path(palaestra.__file__).parents[1].joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    defined = {name for node in ast.parse(source).body for name in defined_names(node)}
    submodules = {file.stem for file in path.glob("*.py")}
    assert set(DOCUMENTED[module].split()) <= defined | submodules
