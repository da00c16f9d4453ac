##@ Look
shell: ## The srun line of a shell beside a running rank: RUN=... [FLAGS="--rank 1 --go"]
KIT_TARGETS += shell
