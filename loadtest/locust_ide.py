"""IDE completion, chat, code review and long documents against an OpenAI server.

`python loadtest/locust_ide.py` runs the command of `loadtest.mixed` against http://127.0.0.1:8000; `--help` lists its
options. `locust -f loadtest/locust_ide.py` offers the same traffic as users in Locust's web interface.
"""

if __name__ == "__main__":
    from loadtest.mixed import main

    main()
else:  # Locust imports this file and looks for its users. Importing Locust patches the process: not for the command.
    from loadtest.locust_users import *  # noqa: F403 - Locust collects users by name
