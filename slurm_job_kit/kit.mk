# Targets of the Slurm job kit: `make -f kit.mk` lists them. To use them as `make submit ...`, write
# `include kit.mk` into your Makefile. They need the command kit on PATH: activate its environment.
KIT_MK := $(lastword $(MAKEFILE_LIST))
ifneq ($(origin KIT),file)
KIT := kit
endif
kit-help:
	@awk $(KIT_HELP) $(KIT_MK) $(KIT_PLUGINS)
# Targets with the same heading stand together, in whichever file they are. dev=1: those for work on
# the kit itself, and no others.
KIT_HELP = -F ':.*\#\# ' '/^\#\#@/ {at = substr($$0, 5); if (!(at in text)) heads[++n] = at; text[at] = text[at]} \
	/^[a-z0-9-]+:.*\#\# / {text[at] = text[at] sprintf("  make %-14s %s\n", $$1, $$2)} \
	/^\#\#:/ {notes = notes substr($$0, 5) "\n"} \
	END {for (i = 1; i <= n; i++) if ((heads[i] == "Work on the kit") == dev) printf "%s\n%s\n", heads[i], text[heads[i]]; if (!dev) printf "%s", notes}'
##: A variable counts on make's command line only, not in the environment or a Makefile.
##: YES, CODE and DRY are 1 or 0.

##@ Run
submit: ## Run a spec: CONFIG=configs/NAME.yaml [SET="train.lr=0.05"] [FROM=RUN@step-100], or CMD="python train.py"
dry-run: ## Show what submit would do with CONFIG=...: sbatch command, resolved spec [FLAGS=--full]

##@ Look
##@ Look

##@ Change
cancel: ## Stop a run: RUN=...; only resume continues it
resume: ## Continue the newest run [RUN=...] [SET="slurm.time=..."] [CODE=1] [CHECKPOINT=best] [YES=1]

##@ Results

KIT_TARGETS := submit dry-run cancel resume
include $(KIT_PLUGINS)

# Python reads which variables were typed, and refuses those that the target does not take.
override export KIT_TYPED = $(MAKEOVERRIDES)
.PHONY: kit-help $(KIT_TARGETS)
$(KIT_TARGETS):
	@$(KIT) make $@
