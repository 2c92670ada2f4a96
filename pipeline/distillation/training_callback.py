"""What happens between the steps of a training: progress, examinations on dev prompts, the best weights, complete checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from pipeline.config.distill import DistillConfig
from pipeline.distillation.checkpoints import keep_best, mark_complete
from pipeline.distillation.compiled_layers import as_written
from pipeline.distillation.processes import is_first, wait_for_all
from pipeline.distillation.segments import SegmentLosses
from pipeline.distillation.sharding import complete
from pipeline.distillation.training_log import LOSS, add_losses, examination_entry, note, out_of_patience
from pipeline.examination.examiner import AcceptanceSummary
from pipeline.progress import Track


class TrainingCallback(TrainerCallback):  # type: ignore[misc]
    """Progress, evaluation on dev prompts, the best weights so far, and the marker file of complete checkpoints."""

    def __init__(
        self,
        trainer: Any,
        settings: DistillConfig,
        by_segment: SegmentLosses,
        examine: Callable[[Any], AcceptanceSummary],
        track: Track,
        work: Path,
    ) -> None:
        self._trainer, self._settings, self._by_segment = trainer, settings, by_segment
        self._examine_draft, self._track = examine, track
        self._work, self._last = work, ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # accelerate wraps the model's forward in autocast permanently. Undo it: `compute_loss` has its own autocast, and
        # examination, sampling and later phases need the plain forward.
        self._trainer.accelerator.unwrap_model(self._trainer.model, keep_fp32_wrapper=False)
        if state.global_step:
            self._track.advance(state.global_step)
        else:
            self._examine(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._settings.evaluate_every == 0 or state.global_step == state.max_steps:
            self._examine(control)
        self._track.advance(1, self._last)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if LOSS in state.log_history[-1]:
            add_losses(state.log_history[-1], self._by_segment.take())

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wait_for_all()  # each process writes a file of its own
        if is_first():
            mark_complete(Path(args.output_dir), state.global_step)

    def _examine(self, control: Any) -> None:
        """Evaluate on dev prompts. The log, which is restored from checkpoints, stores the result and gives the best step."""
        state = self._trainer.state
        with complete(self._trainer.model) as model, as_written(model):
            model.eval()
            summary = self._examine_draft(model)
            model.train()
        self._last = note(summary)
        # Not Trainer.log(): within a step it would replace that step's loss.
        state.log_history.append(examination_entry(state.global_step, summary))
        keep_best(self._trainer.model, self._work, state.log_history)
        if out_of_patience(state.log_history, self._settings):
            control.should_training_stop = True
            control.should_save = True  # a phase is finished where there is a checkpoint of its end
