##@ Look
KIT_TARGETS += status why logs
status: ## List the runs, or one: [RUN=name, run id, job id, directory] [FLAGS=--all]
why: ## Why a run waits, ended or is held, and what to do [RUN=...] [FLAGS=--json]
logs: ## Rank 0's logs, all attempts [RUN=...] [FLAGS="-f --rank 1"] [FLAGS=--errors: the first error]
