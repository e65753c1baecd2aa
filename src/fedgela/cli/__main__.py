from fedgela.cli import main

main()
