"""The front door: python run_lab.py SPEC_FILE SPEC_NAME MODE. The same command as `slm-lab`."""

from slm_lab.cli import main

if __name__ == "__main__":
    main()
